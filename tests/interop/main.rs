//! Beside the real Redisson, both ways: a JVM with a Redisson client on one side, leasehold on the other.
//!
//! Not run by `cargo test`, since it takes Maven: `tests/interop/run` builds the Java side (`java/`) and runs this. Each
//! scenario runs with the newest Redisson of two lines, most of them on one server and in a cluster.

#![cfg(target_os = "linux")]

mod counter;
mod ends;
mod exclusion;
mod fences;
mod jobs;
mod kinds;
mod peer;
mod plain;
mod shared;
mod steals;
mod turns;
mod wakeups;
mod world;

/// Makes a test of a scenario for each version of Redisson and each place.
macro_rules! scenarios {
    ($($name:ident: $($place:ident)+;)+) => {$(
        mod $name {
            $(mod $place {
                use crate::world::{Where, World};

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn redisson_4() {
                    super::super::$name(&World::start("4", Where::$place).await).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn redisson_3() {
                    super::super::$name(&World::start("3", Where::$place).await).await;
                }
            })+
        }
    )+};
}
pub(crate) use scenarios;

/// This very program is also the holder whose process is killed.
#[test]
fn holder_process() {
    kit::holder::serve();
}
