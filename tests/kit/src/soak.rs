//! What the soak and the tests of its oracle share: events, the leases they tell of, and the oracle.

pub mod history;
pub mod leases;
pub mod oracle;
