//! Checks the contract of [`Store`](crate::store::Store): one function for each case. A clause has
//! several, and each case names its clause. Those without one check what the documentation of a method says.
//!
//! [`conformance_suite!`](crate::conformance_suite) runs them all. Each takes names of its own, so
//! they can share a backend, also with an earlier run of themselves.
//!
//! The suite grows with the contract: a new version of leasehold may have more cases, and a store that breaks a clause
//! fails them. That is not a breaking change.

mod ends;
mod fences;
mod holds;
mod keep;
mod line;
mod list;
mod metadata;
mod modes;
mod party;
mod permits;
mod read_write;
mod sets;
mod steals;

pub use ends::*;
pub use fences::*;
pub use holds::*;
pub use keep::*;
pub use line::*;
pub use list::*;
pub use metadata::*;
pub use modes::*;
pub use permits::*;
pub use read_write::*;
pub use sets::*;
pub use steals::*;

/// Makes a test of each function in [`testing::conformance`](crate::testing::conformance).
///
/// Takes the attributes of the tests and an expression, in an async context, for a
/// [`Harness`](crate::testing::Harness). Each test evaluates the expression again. Put it into a module of its own.
///
/// ```
/// # mod kit {
/// #     use leasehold::{store::*, testing::Harness};
/// #     pub struct Kit(pub MemoryStore);
/// #     #[async_trait::async_trait]
/// #     impl Harness for Kit {
/// #         async fn store(&self) -> std::sync::Arc<dyn Store> { std::sync::Arc::new(self.0.clone()) }
/// #         async fn lose(&self, name: &Name) { self.0.delete(name.as_str()); }
/// #         async fn occupy(&self, _: &Name) -> bool { false }
/// #         async fn elapse(&self, time: std::time::Duration) { tokio::time::advance(time).await }
/// #         fn ttl(&self) -> std::time::Duration { std::time::Duration::from_secs(1) }
/// #     }
/// # }
/// mod memory {
///     use super::kit::Kit;
///     use leasehold::store::MemoryStore;
///
///     leasehold::conformance_suite!(#[tokio::test(start_paused = true)] Kit(MemoryStore::new()));
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_suite {
    ($(#[$test:meta])+ $harness:expr) => {
        $crate::conformance_suite! { @each [$(#[$test])+] [$harness]
            free_name_is_granted
            held_name_is_refused_with_the_time_it_has_left
            only_one_of_many_requests_is_granted
            same_holder_id_is_granted_again_with_the_same_fence
            record_sets_the_count_and_nothing_else
            record_never_creates
            release_lowers_the_count_and_at_zero_gives_back
            release_by_another_holder_id_changes_nothing
            renewal_sets_the_time_to_live_and_never_adds_to_it
            renewal_never_creates
            batch_of_renewals_is_answered_one_by_one_in_order
            batch_has_one_time_to_live_for_all_its_items
            every_operation_may_run_twice
            what_arrives_late_changes_nothing
            there_is_always_a_time_to_live
            hold_expires_after_its_time_to_live_and_not_before
            expired_hold_does_not_come_back
            renewed_hold_outlives_its_first_time_to_live
            fences_grow_whatever_ends_a_hold
            reserved_block_of_fences_is_never_given_again
            memory_of_the_last_fence_is_renewed
            fences_grow_beyond_the_memory_of_the_last
            without_fencing_there_is_no_fence
            token_that_the_caller_names_must_be_larger
            inspection_reports_the_holder
            metadata_is_that_of_the_present_holder
            metadata_may_be_written_twice_and_late
            metadata_lives_as_long_as_the_hold
            metadata_wakes_observers
            metadata_of_a_shared_name_is_refused
            description_of_a_manager_is_kept_until_it_is_deleted
            names_in_use_are_listed
            deleted_hold_is_gone
            forced_release_ends_any_hold
            last_release_wakes_a_waiter
            forced_release_wakes_a_waiter
            what_is_not_a_lock_is_left_alone
            names_are_taken_as_they_are
            mode_that_is_not_supported_is_refused
            batch_with_a_mode_that_is_not_supported_is_refused
            arrival_in_a_line_that_does_not_exist_is_refused
            line_is_in_the_order_of_arrival
            requests_with_an_arrival_may_run_twice_and_late
            release_records_the_arrival_of_the_next_waiter
            arrival_lapses_by_itself
            waiter_behind_a_mark_is_in_the_line
            arrival_that_is_left_wakes_the_others
            arrival_that_is_left_goes_to_the_next_waiter
            arrival_that_moves_back_wakes_the_first
            readers_share_a_name_and_exclude_a_writer
            fences_of_readers_grow_between_those_of_writers
            read_write_requests_may_run_twice
            mode_changes_only_on_request_and_only_for_the_sole_reader
            older_waiter_of_the_other_side_goes_first
            arrival_lapses_with_its_own_waiter
            one_of_two_waiters_always_goes_first
            arrival_of_a_side_is_given_up_once
            readers_expire_one_by_one
            read_write_releases_wake_waiters
            permits_are_counted
            bundle_of_permits_is_all_or_none
            permits_expire_and_come_back
            release_of_permits_wakes_a_waiter
            waiters_for_permits_are_counted
            resize_that_grows_wakes_waiters
            resize_below_what_is_out_takes_nothing_away
            resize_leaves_handles_with_a_former_size_working
            resize_makes_a_semaphore_and_resizes_an_idle_one
            resize_is_for_semaphores_only
            kinds_of_locks_do_not_mix
            batch_of_several_kinds_is_answered_in_order
            release_with_a_mark_keeps_the_name_closed
            mark_stays_whatever_comes_late
            mark_ends_by_itself
            mark_needs_the_last_lease_of_a_hold
            mark_of_another_mode_is_refused
            renewal_sets_a_time_to_live_of_its_own
            verdicts_say_when_the_request_left
            closing_one_handle_leaves_the_leases
            set_of_free_names_is_granted
            set_with_a_held_name_takes_no_name
            set_is_granted_again_with_the_same_fences
            late_copy_of_a_set_changes_nothing
            set_with_what_is_not_a_lock_takes_no_name
            stolen_name_has_the_new_holder_only
            steal_may_run_twice_and_late
            late_steal_leaves_an_old_holder_that_is_back
            steal_from_whoever_does_not_hold_takes_nothing
            stolen_hold_expires_after_its_time_to_live
            steal_in_another_mode_is_refused
            wish_leaves_a_note_and_the_hold
            forced_release_with_a_reason_leaves_a_note
            forced_release_from_one_holder_frees_no_other
            fences_grow_from_steal_to_steal
            manager_that_lingers_is_asked_to_yield
        }
    };
    (@each $test:tt $harness:tt $($case:ident)+) => {
        $($crate::conformance_suite! { @one $test $harness $case })+
    };
    (@one [$(#[$test:meta])+] [$harness:expr] $case:ident) => {
        $(#[$test])+
        async fn $case() {
            $crate::testing::conformance::$case(&$harness).await;
        }
    };
}
