//! The protocol, by the model checker: all rules hold together, and each of them is needed.

use leasehold_protocol::properties::*;
use leasehold_protocol::rules::{Rule, Rules, Sharing};
use leasehold_protocol::tokens::{BOTH, DISTINCT, GROWING, RAISED, TokenRule, Tokens};
use leasehold_protocol::tokens::{tokens_break, tokens_hold};
use leasehold_protocol::{Fault, Scope, breaks, holds};

const SCOPE: Scope = Scope {
    rules: Rules { dropped: &[], sharing: Sharing::Exclusive },
    clients: 2,
    tokens: 1,
    faults: 0,
    kinds: &[],
    plain_clients: true,
    nesting: false,
    handoff: false,
    abandon: false,
    drift: false,
    requests: 4,
};
const DRIFT: Scope = Scope { drift: true, ..SCOPE };
const HANDOFF: Scope = Scope { handoff: true, ..SCOPE };
const NESTING: Scope = Scope { nesting: true, ..SCOPE };
const ABANDON: Scope = Scope { abandon: true, ..SCOPE };
/// One writes, two read.
const READERS: Scope = sharing(Sharing::Readers);
/// Three clients for two permits.
const PERMITS: Scope = sharing(Sharing::Permits(2));

const fn sharing(sharing: Sharing) -> Scope {
    Scope { clients: 3, requests: 3, rules: Rules { sharing, ..SCOPE.rules }, ..SCOPE }
}

#[test]
fn clients_exclude_each_other() {
    let met = [LOSS, LOST_REPLY, ORPHAN, TAKE_OVER];
    holds("two clients", Scope { plain_clients: false, ..SCOPE }, &[], &met);
}

#[test]
fn clocks_within_the_rate_error_exclude_each_other() {
    holds("clocks that drift", DRIFT, &[], &[LOSS, TAKE_OVER]);
}

#[test]
fn requests_that_run_twice_or_far_too_late_change_nothing() {
    let kinds = &[Fault::Double, Fault::Late];
    let scope = Scope { faults: 1, kinds, requests: 3, ..NESTING };
    holds("doubled and late", scope, &[], &[ORPHAN, LOST_REPLY, LOSS]);
}

#[test]
fn three_clients_exclude_each_other() {
    holds("three clients", Scope { clients: 3, requests: 3, ..SCOPE }, &[], &[LOSS, TAKE_OVER]);
}

#[test]
fn readers_share_the_name_and_exclude_the_writer() {
    holds("one writer, two readers", READERS, &[], &[SHARED, LOSS, TAKE_OVER]);
}

#[test]
fn never_more_believe_than_there_are_permits() {
    holds("three clients, two permits", PERMITS, &[], &[SHARED, LOSS, TAKE_OVER]);
}

#[test]
fn requests_for_shared_names_may_run_twice_and_late() {
    let kinds = &[Fault::Double, Fault::Late];
    let readers = Scope { faults: 1, kinds, clients: 2, ..READERS };
    holds("a writer and a reader, doubled and late", readers, &[], &[ORPHAN, LOSS]);
    let permits = Scope { faults: 1, kinds, ..PERMITS };
    holds("permits, doubled and late", permits, &[], &[SHARED, ORPHAN]);
}

#[test]
fn count_of_a_nested_hold_is_the_holders() {
    holds("nested acquires", NESTING, &[], &[NESTED]);
}

#[test]
fn hand_off_excludes_others_and_has_its_own_fence() {
    holds("hand-offs", HANDOFF, &[], &[HAND_OFF, LOSS]);
}

#[test]
fn abandoned_acquire_leaves_nothing_behind() {
    holds("abandoned acquires", ABANDON, &[], &[ORPHAN, LOST_REPLY]);
}

/// What a server costs that loses its keys: exclusion. A reply that comes late may even make the older of two
/// grants the later to be believed in; but no two have the same fencing token, so the resource can tell.
#[test]
fn server_without_its_keys_lets_two_believe_and_fences_differ() {
    let scope = Scope { faults: 1, kinds: &[Fault::LoseKeys], requests: 3, ..HANDOFF };
    holds("lost keys", scope, &[ONE_BELIEVER, COVERED, GRACE, FENCES], &[]);
}

/// What a forward step of the server's clock costs: the same.
#[test]
fn clock_step_of_the_server_lets_two_believe_and_fences_differ() {
    let scope = Scope { faults: 1, kinds: &[Fault::StepForward], requests: 3, ..HANDOFF };
    holds("a clock that is stepped", scope, &[ONE_BELIEVER, COVERED, GRACE, FENCES], &[]);
}

#[test]
fn counted_from_the_reply_the_deadline_is_too_late() {
    breaks(&[Rule::DeadlineFromSend], SCOPE, ONE_BELIEVER);
}

#[test]
fn clock_too_slow_believes_too_long_without_margin_and_grace() {
    breaks(&[Rule::Margin, Rule::Grace], DRIFT, ONE_BELIEVER);
}

#[test]
fn grace_is_not_kept_free_without_the_margin() {
    breaks(&[Rule::Margin], DRIFT, GRACE);
}

#[test]
fn grace_left_out_ends_the_holder_too_late() {
    breaks(&[Rule::Grace], DRIFT, COVERED);
}

#[test]
fn release_that_is_not_by_token_ends_somebody_elses_hold() {
    breaks(&[Rule::ReleaseByToken], SCOPE, COVERED);
}

#[test]
fn acquire_that_increments_counts_itself_twice() {
    breaks(&[Rule::CountsAreAbsolute], SCOPE, ASKED);
}

#[test]
fn renewal_that_creates_revives_what_was_released() {
    breaks(&[Rule::RenewalsNeverCreate], SCOPE, REVIVED);
}

#[test]
fn count_that_creates_leaves_a_key_for_ever() {
    breaks(&[Rule::CountsNeverCreate], NESTING, ENDS);
}

#[test]
fn abandoned_acquire_stays_until_it_expires_without_sweeping() {
    breaks(&[Rule::Sweep], ABANDON, EMPTY);
    let rules = Rules { dropped: &[Rule::Sweep], ..SCOPE.rules };
    let scope = Scope { rules, requests: 4, ..ABANDON };
    holds("without sweeping", scope, &[EMPTY], &[ORPHAN]);
}

#[test]
fn hand_off_after_the_release_was_sent_lets_two_believe() {
    breaks(&[Rule::HandOffBeforeRelease], HANDOFF, ONE_BELIEVER);
}

#[test]
fn hand_off_without_a_reserved_fence_takes_the_next_grants() {
    breaks(&[Rule::ReservedFences], HANDOFF, FENCES);
}

#[test]
fn writer_that_waits_for_the_last_reader_alone_meets_another() {
    // The last one leaves before.
    breaks(&[Rule::AllReaders], Scope { requests: 4, ..READERS }, ONE_BELIEVER);
}

#[test]
fn one_time_to_live_for_all_keeps_those_that_are_gone() {
    breaks(&[Rule::OwnExpiry], PERMITS, ENDS);
}

#[test]
fn release_of_a_permit_that_is_not_by_token_ends_others() {
    breaks(&[Rule::ReleaseByToken], PERMITS, COVERED);
}

/// Two grants on three nodes that forget nothing. Their clocks differ by less than T.
const TOKENS: Tokens = Tokens {
    skew: &[0, 2, 5],
    grants: 2,
    ticks: 0,
    restarts: 0,
    flushes: 0,
    raises: 0,
    dropped: &[],
};
/// One of the nodes may restart without its keys, and T may pass.
const FORGETTING: Tokens = Tokens { ticks: 1, restarts: 1, ..TOKENS };
/// Six grants on five nodes, of which some restart.
const FIVE: Tokens =
    Tokens { skew: &[0, 1, 2, 3, 5], grants: 6, ticks: 8, restarts: 4, raises: 2, ..TOKENS };

#[test]
fn tokens_of_a_quorum_differ_and_grow() {
    let states = tokens_hold("tokens of a quorum", TOKENS, &[BOTH]);
    assert!(states > 30_000, "{states}");
    let raised = Tokens { raises: 1, skew: &[0, 0, 0], ..TOKENS };
    tokens_hold("tokens that are outrun", raised, &[BOTH, RAISED]);
}

#[test]
fn tokens_of_a_quorum_grow_across_a_restart_that_forgets() {
    tokens_hold("tokens and a restart", Tokens { skew: &[0, 5, 5], ..FORGETTING }, &[BOTH]);
}

#[test]
fn token_that_need_not_be_larger_is_given_twice() {
    let dropped = &[TokenRule::Strict];
    tokens_break(Tokens { dropped, skew: &[0, 0, 0], ..TOKENS }, DISTINCT);
}

#[test]
fn token_that_no_majority_has_stored_lets_tokens_go_back() {
    tokens_break(Tokens { dropped: &[TokenRule::Stored], ..TOKENS }, GROWING);
}

#[test]
fn young_node_that_counts_proposes_a_token_from_before() {
    tokens_break(Tokens { dropped: &[TokenRule::Age], ..FORGETTING }, GROWING);
}

/// What the age of a node does not show, or what is not promised.
#[test]
fn flush_or_clocks_far_apart_let_tokens_go_back() {
    tokens_break(Tokens { flushes: 1, ..TOKENS }, GROWING);
    tokens_break(Tokens { skew: &[0, 2, 12], ..FORGETTING }, GROWING);
}

#[test]
fn random_orders_on_five_nodes_that_forget_keep_tokens_in_order() {
    let run = |scope: Tokens| {
        let stories: Vec<_> = (1..10_000).map(|seed| scope.random(seed, 300)).collect();
        let complete: usize = stories.iter().map(|story| story.complete).sum();
        let bad = stories.iter().filter(|story| !story.good).count();
        println!("five nodes, without {:?}: {complete} grants, {bad} bad stories", scope.dropped);
        (complete, bad)
    };
    let (complete, bad) = run(FIVE);
    assert!(complete > 3_000, "{complete}");
    assert_eq!(bad, 0);
    for dropped in [&[TokenRule::Strict], &[TokenRule::Age]] {
        assert!(run(Tokens { dropped, ..FIVE }).1 > 0, "{dropped:?}");
    }
}
