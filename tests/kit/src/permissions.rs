//! The permissions of a user, as the guide lists them.

const GUIDE: &str = include_str!("../../../src/guide/redis.md");

/// The least that one server needs, for names that begin with `app:`.
pub fn of_one_server() -> Vec<&'static str> {
    words("ACL SETUSER lease on >PASSWORD ", "```")
}

/// What read-write locks and semaphores need beside these.
pub fn of_shared_names() -> Vec<&'static str> {
    words("Read-write locks and semaphores need also\n\n```text\n", "```")
}

/// What fair locks need beside these.
pub fn of_fair_locks() -> Vec<&'static str> {
    words("Fair locks need also `", "`")
}

/// What elections and metadata need beside these.
pub fn of_elections() -> Vec<&'static str> {
    words("Elections, labels and `describe_now` need also `", "`")
}

/// What a listing needs beside these and, for semaphores, those of shared names.
pub fn of_listing() -> Vec<&'static str> {
    words("Listing needs also `", "`")
}

/// What a cluster needs beside these.
pub fn of_a_cluster() -> Vec<&'static str> {
    words("In a cluster also `", "`")
}

/// What one server needs and a cluster with sharded pub/sub does not.
pub fn of_plain_pubsub() -> Vec<&'static str> {
    words("; there `", "`")
}

fn words(before: &str, behind: &str) -> Vec<&'static str> {
    let (_, words) = GUIDE.split_once(before).expect("the guide has it");
    let (words, _) = words.split_once(behind).expect("it has an end");
    words.split_whitespace().collect()
}
