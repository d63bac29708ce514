//! The kinds of calls that faults strike.

/// A kind of call of a [`Store`](crate::store::Store).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Call {
    /// [`Store::acquire`](crate::store::Store::acquire) and [`Store::acquire_all`](crate::store::Store::acquire_all)
    Acquire,
    /// [`Store::release`](crate::store::Store::release) of a hold
    Release,
    /// [`Store::renew`](crate::store::Store::renew), one for each [call](crate::store::RenewCall)
    Renew,
    /// [`Store::resize`](crate::store::Store::resize)
    Resize,
    /// [`Store::inspect`](crate::store::Store::inspect), about the holders
    Inspect,
    /// [`Store::annotate`](crate::store::Store::annotate)
    Annotate,
    /// [`Store::describe`](crate::store::Store::describe)
    Describe,
    /// [`Store::owners`](crate::store::Store::owners)
    Owners,
    /// [`Store::subscribe`](crate::store::Store::subscribe) to the description of a holder
    Watch,
    /// [`Store::force_release`](crate::store::Store::force_release)
    ForceRelease,
    /// [`Store::acquire`](crate::store::Store::acquire) that takes a name from its holder
    Steal,
    /// [`Store::want`](crate::store::Store::want)
    Want,
    /// [`Store::inspect`](crate::store::Store::inspect), about a note
    Note,
    /// [`Store::inspect`](crate::store::Store::inspect), about the line
    Line,
    /// [`Store::release`](crate::store::Store::release) of an arrival
    Leave,
    /// [`Store::subscribe`](crate::store::Store::subscribe) to releases
    Subscribe,
    /// [`Pages::next`](crate::store::Pages::next) of [`Store::list`](crate::store::Store::list)
    List,
    /// [`Store::uptime`](crate::store::Store::uptime)
    Uptime,
    /// [`Store::reserve`](crate::store::Store::reserve)
    Reserve,
    /// [`Store::close`](crate::store::Store::close), which is counted but never fails
    Close,
}

impl Call {
    /// All kinds.
    pub const ALL: [Call; 20] = [
        Call::Acquire,
        Call::Release,
        Call::Renew,
        Call::Resize,
        Call::Inspect,
        Call::Annotate,
        Call::Describe,
        Call::Owners,
        Call::Watch,
        Call::ForceRelease,
        Call::Steal,
        Call::Want,
        Call::Note,
        Call::Line,
        Call::Leave,
        Call::Subscribe,
        Call::List,
        Call::Uptime,
        Call::Reserve,
        Call::Close,
    ];
}
