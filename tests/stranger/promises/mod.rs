//! The promises of the guide, a function each, with the sentence that it checks.
//!
//! Each returns what surely breaks its promise: where the stamps allow two orders of events, the harmless one counts.

mod exclusion;
mod fencing;
mod force;
mod jobs;
mod losses;
mod order;
mod returns;
mod waits;

pub use exclusion::{
    close_waits_for_the_grace, downgrade_lets_no_writer_in, locks_exclude, permits_keep_the_size,
    stolen_holder_learns, token_fires_before_the_next_grant,
};
pub use fencing::{
    fences_are_there, fences_grow, readers_have_their_own, steal_has_a_larger_fence,
};
pub use force::{
    close_fires_all_tokens, force_fires_tokens_here, lost_lease_stays_lost, patience_lasts,
};
pub use jobs::{done_only_if_it_ran, job_runs_once, jobs_exclude};
pub use losses::{
    closed_call_fails, delay_keeps_the_name, forget_keeps_the_name, losses_have_causes,
    max_hold_ends_a_lease, min_hold_keeps_the_name, stall_ends_a_lease, token_fires_at_the_end,
};
pub use order::{fair_order, order_in_a_manager};
pub use returns::{
    another_kind_is_refused, close_ends_in_time, errors_have_reasons, force_reports_a_holder,
    fresh_lease_has_half, hold_count_counts, nested_call_is_at_once, nothing_is_left,
    refusal_has_a_reason, unsupported_is_refused, view_goes_forward,
};
pub use waits::{free_name_is_granted, limits_are_kept, silence_lasts_a_ttl, stuck_call};

use crate::history::History;
use crate::judge::Breach;

type Promise = fn(&History) -> Vec<Breach>;

/// All of them.
pub const ALL: [Promise; 41] = [
    locks_exclude,
    token_fires_before_the_next_grant,
    permits_keep_the_size,
    downgrade_lets_no_writer_in,
    close_waits_for_the_grace,
    stolen_holder_learns,
    fences_grow,
    fences_are_there,
    readers_have_their_own,
    steal_has_a_larger_fence,
    job_runs_once,
    jobs_exclude,
    done_only_if_it_ran,
    losses_have_causes,
    max_hold_ends_a_lease,
    min_hold_keeps_the_name,
    delay_keeps_the_name,
    forget_keeps_the_name,
    token_fires_at_the_end,
    closed_call_fails,
    order_in_a_manager,
    fair_order,
    nested_call_is_at_once,
    errors_have_reasons,
    unsupported_is_refused,
    refusal_has_a_reason,
    fresh_lease_has_half,
    force_reports_a_holder,
    close_ends_in_time,
    nothing_is_left,
    free_name_is_granted,
    limits_are_kept,
    silence_lasts_a_ttl,
    stall_ends_a_lease,
    another_kind_is_refused,
    view_goes_forward,
    lost_lease_stays_lost,
    close_fires_all_tokens,
    force_fires_tokens_here,
    patience_lasts,
    hold_count_counts,
];

/// Returns all that is broken.
pub fn judge(history: &History) -> Vec<Breach> {
    let mut breaches: Vec<Breach> = ALL.iter().flat_map(|promise| promise(history)).collect();
    breaches.extend(stuck_call(history));
    breaches
}
