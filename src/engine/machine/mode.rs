//! What the engine asks of a mode: one answer for each question, without a wildcard.
//!
//! A new mode does not compile before each question has an answer here. Three decisions need more than the mode, and match
//! on it where they are made: [`Occupants::may_try`](super::contention::Occupants::may_try), `AcquireLoop::arrival` and
//! `Core::give_way`.

use crate::store::Mode;

/// Returns whether two holds of this mode can exist at once.
pub(in crate::engine) fn is_shared(mode: Mode) -> bool {
    match mode {
        Mode::Read | Mode::Permits { .. } => true,
        Mode::Exclusive | Mode::Write => false,
    }
}

/// Returns whether a hold of this mode and one of `other` can exist at once. No mode shares a name with another one.
pub(in crate::engine) fn can_share(mode: Mode, other: Mode) -> bool {
    is_shared(mode) && mode.index() == other.index()
}

/// Returns whether the handles of this manager share one hold of this mode, which they join: see
/// [`readers`](crate::engine::hold::readers).
pub(in crate::engine) fn is_joined(mode: Mode) -> bool {
    match mode {
        Mode::Read => true,
        Mode::Exclusive | Mode::Write | Mode::Permits { .. } => false,
    }
}

/// Returns whether a handle that has a hold of this mode can enter it again in the mode `asked`. Otherwise its call
/// would wait for itself.
pub(in crate::engine) fn can_enter(mode: Mode, asked: Mode) -> bool {
    match mode {
        Mode::Exclusive | Mode::Write => true,
        Mode::Read | Mode::Permits { .. } => can_share(mode, asked),
    }
}

/// Returns whether a handle can enter again what it has, so that a call behind a hold of this process may be a mistake.
pub(in crate::engine) fn is_reentrant(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive | Mode::Read | Mode::Write => true,
        // Each call gets permits of its own.
        Mode::Permits { .. } => false,
    }
}

/// Returns whether a hold of this mode can be handed off to a waiter for the same mode.
pub(in crate::engine) fn can_hand_off(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive | Mode::Write | Mode::Permits { .. } => true,
        // Readers join a hold instead.
        Mode::Read => false,
    }
}

/// Returns whether a hold of this mode may rest, where the manager lingers.
pub(in crate::engine) fn can_rest(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => true,
        // A writer would rest in the way of all readers, and its end admits many at once. Permits would be missing elsewhere.
        Mode::Read | Mode::Write | Mode::Permits { .. } => false,
    }
}

/// Returns whether a hold can be handed off to a call that asks the store: other holds of the name may end meanwhile.
pub(in crate::engine) fn can_seek(mode: Mode) -> bool {
    match mode {
        Mode::Permits { .. } => true,
        // Readers join a hold instead, and the others ask only while no hold is there.
        Mode::Exclusive | Mode::Read | Mode::Write => false,
    }
}

/// Returns whether a grant reserves fencing tokens for the holds that it is handed off to.
pub(in crate::engine) fn reserves_fences(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive | Mode::Write => true,
        Mode::Read | Mode::Permits { .. } => false,
    }
}

/// Returns whether a name of this mode has a size, which the store keeps for a while when the name is idle.
pub(in crate::engine) fn has_size(mode: Mode) -> bool {
    match mode {
        Mode::Permits { .. } => true,
        Mode::Exclusive | Mode::Read | Mode::Write => false,
    }
}

/// Returns whether the managers that wait for a name can form a line in the store, for fair locks: see
/// [`line`](crate::engine::shared::line).
pub(in crate::engine) fn has_line(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => true,
        Mode::Read | Mode::Write | Mode::Permits { .. } => false,
    }
}

/// Returns whether a holder can have metadata beside its lock.
pub(in crate::engine) fn has_metadata(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => true,
        Mode::Read | Mode::Write | Mode::Permits { .. } => false,
    }
}

/// Returns whether a hold can have a `min_hold` and a `lock_delay`.
pub(in crate::engine) fn can_stay_closed(mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => true,
        Mode::Read | Mode::Write | Mode::Permits { .. } => false,
    }
}
