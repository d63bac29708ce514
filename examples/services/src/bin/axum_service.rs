//! A web service whose orders are worked on one at a time.

fn main() {}
