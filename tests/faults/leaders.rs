//! Leaders in their own processes are killed: how soon the next one leads, in a later term.
#![cfg(target_os = "linux")]

use std::thread;
use std::time::Duration;

use kit::fault::{LONG, boottime, connect, end_of, millis, owner, renewal, undisturbed};
use kit::holder::Holder;
use kit::{Server, eventually, within};
use leasehold::{Leader, View};
use rustix::process::Signal;

const T: Duration = millis(1_500);
/// What is promised beside the time to live.
const ROOM: Duration = millis(150);
/// The share of the control that is added: a candidate wakes, asks and is woken again where the control only asks.
const SHARE: u32 = 3;

/// The control: asks a server on a connection of its own, from the expiry on, until the holder is gone. Returns how late it
/// learns of it, which is the machine's part of any delay.
fn control(server: &Server, holder: &str, end: Duration) -> thread::JoinHandle<Duration> {
    let mut connection = server.connection();
    let holder = holder.to_owned();
    thread::spawn(move || {
        thread::sleep(end.saturating_sub(boottime()));
        while connection.command(&["HEXISTS", "job", &holder]).int() == 1 {}
        boottime().saturating_sub(end)
    })
}

async fn until(view: &mut View, shows: impl Fn(&Leader) -> bool) -> Leader {
    let shown = async {
        loop {
            let leader = view.changed().await;
            if shows(&leader) {
                return leader;
            }
        }
    };
    within(LONG, shown).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_leader_is_followed_within_the_ttl() {
    undisturbed(|| async {
        let server = Server::start();
        let here = connect(&server.url(), T).await;
        let election = here.election("job");
        let mut view = election.observe();
        let mut last = None;
        for round in 0..4_u32 {
            let mut leader = Holder::start();
            leader.send(&format!("connect {} {}", server.url(), T.as_millis()));
            leader.send(&format!("lead job process-{round}"));
            let led = leader.event(&["leads", "job"]).await;
            let value = format!("process-{round}");
            let seen = until(&mut view, |leader| leader.value.as_ref() == Some(&value)).await;
            assert_eq!(seen.term, Some(led.number(2)));
            assert!(seen.term > last, "terms grow");

            let mut candidate = election.candidate("here");
            let campaign = tokio::spawn(async move {
                let led = within(LONG, candidate.campaign()).await;
                (led.expect("it leads"), boottime())
            });
            // Anywhere between two renewals.
            renewal(&server, "job").await;
            tokio::time::sleep(T / 3 * round / 4).await;
            let dead = owner(&server, "job");
            let killed = leader.signal(Signal::KILL);
            assert!(!leader.ended().await.success());
            let end = end_of(&server, "job");
            let control = control(&server, &dead, end);
            let (me, entered) = campaign.await.expect("no panic");
            let control = control.join().expect("an answer");

            let (after_kill, after_end) = (entered - killed, entered.saturating_sub(end));
            println!(
                "leads {after_kill:?} after the kill, {after_end:?} after the expiry; control {control:?}"
            );
            let room = ROOM + control * SHARE;
            assert!(after_kill <= T + room, "{after_kill:?} after the kill; control {control:?}");
            assert!(after_end <= room, "{after_end:?} after the expiry; control {control:?}");
            assert!(me.term() > seen.term, "{:?}, then {:?}", seen.term, me.term());
            assert_ne!(owner(&server, "job"), dead);
            let seen = until(&mut view, |leader| leader.value.as_deref() == Some("here")).await;
            assert_eq!(seen.term, me.term());
            last = me.term();
            me.check().expect("it leads");
            me.resign().await.expect("released");
            eventually(LONG, || !kit::fault::exists(&server, "job")).await;
        }
    })
    .await;
}
