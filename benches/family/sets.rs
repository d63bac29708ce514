//! A multi-lock beside a lock of one name.

use super::{Bench, in_turn};

const NAMES: usize = 8;

pub(super) async fn alone(bench: &mut Bench) {
    let leases = bench.connect().await;
    let mut one = leases.lock("sets:one");
    let mut all = leases.multi_lock((0..NAMES).map(|name| format!("sets:{name}"))).expect("a set");
    let all = async || all.lock().await.expect("granted").unlock().await.expect("released");
    let one = async || one.lock().await.expect("granted").unlock().await.expect("released");
    let (all, one) = in_turn((bench.pick(100, 5), 50), all, one).await;
    let title = format!("multi-lock of {NAMES} names / lock of one");
    bench.targets.at_most(&title, 1.6, Some(all / one));
    bench.targets.beside(format!("{:.0} us / {:.0} us", all / 1e3, one / 1e3));
}
