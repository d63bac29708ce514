//! Numbers the grants of a quorum: the second round of a ballot.
//!
//! In the first round each node that grants proposes a fencing token: one that is larger than the last one it knows, and not
//! behind its clock. The ballot takes the largest proposal of the majority that it counts. In the second round each node
//! stores that token if it is *larger* than its last one, while it has the hold, and reports its age after that. The grant
//! counts if a majority has stored the token and is old enough.
//!
//! - **No two grants have the same token.** Two majorities have a node in common, which has stored both, the second because it
//!   was larger.
//! - **A later grant has a larger token.** If a grant was complete before another began, the other's first round meets a node
//!   that has stored its token, and proposes a larger one.
//! - **A node that has forgotten its last token** counts again after a time to live, by its age. Its clock is past all tokens
//!   from before by then, if the clocks of the nodes differ by less than a time to live.
//!
//! The first two use neither time nor exclusion, so they hold while exclusion fails: that is what tokens are for.
//!
//! Where others were quicker, the nodes answer with the last token, and the ballot chooses a larger one.
//!
//! **Readers may share a token.** Many ask at once, and if each had to be the newest at a majority, each node would accept few of
//! them at a time: of 20 managers that read, one `try_read` in five failed. So a node that has a token as large counts for a
//! reader, too, if it granted the reader before the token was chosen. Since that grant only readers have reserved tokens there,
//! and the token is larger than all from before. So it is larger than that of each earlier writer, and a later grant has a
//! larger one. `tests/protocol/src/tokens.rs` is a model of this page but for the readers.

use super::tally::{Answers, Tally, granted};
use super::{SHORTEST_WAIT, random};
use crate::error::{Error, ErrorKind, Fate, Result};
use crate::store::{Acquired, Fencing, Mode};
use crate::util::reached::Rare;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The most tokens that a ballot chooses, one after the other.
const MOST_TOKENS: u32 = 8;
/// A token that was outrun is followed by one that is larger by up to so much, so that two which are outrun by each other
/// differ then.
const LONGEST_LEAP: f64 = 64.0;

/// The answer of a node to the token that it was given.
#[derive(Clone, Copy, Debug)]
pub(super) enum TokenVote {
    /// It has stored the token.
    Stored { first: u64 },
    /// It had a last token that is as large.
    Outrun { first: u64, last: u64 },
}

impl TokenVote {
    fn is_stored(self) -> bool {
        matches!(self, TokenVote::Stored { .. })
    }

    fn is_for(self, token: u64) -> bool {
        match self {
            TokenVote::Stored { first } | TokenVote::Outrun { first, .. } => first == token,
        }
    }
}

/// The second round, as a node sees it.
#[derive(Clone)]
pub(super) struct SecondRound {
    pub(super) fencing: Fencing,
    chosen: watch::Receiver<Option<u64>>,
    pub(super) votes: Answers<TokenVote>,
}

impl SecondRound {
    /// Waits for the next token that the ballot chooses.
    pub(super) async fn chosen(&mut self) -> u64 {
        loop {
            if self.chosen.changed().await.is_err() {
                // The ballot is over, and its decision says how.
                std::future::pending::<()>().await;
            }
            if let Some(first) = *self.chosen.borrow_and_update() {
                return first;
            }
        }
    }
}

/// The second round of a ballot.
pub(super) struct Numbering {
    block: u64,
    /// Whether it is a reader's, and other readers may have its token.
    shares: bool,
    choose: watch::Sender<Option<u64>>,
    votes: Tally<TokenVote>,
}

impl Numbering {
    /// Begins one of a grant in `mode`. Returns the part of the nodes too.
    pub(super) fn new(nodes: usize, mode: Mode, fencing: Fencing) -> (Self, SecondRound) {
        let (choose, chosen) = watch::channel(None);
        let (votes, answers) = Tally::new(nodes);
        let shares = mode == Mode::Read;
        let numbering = Self { block: fencing.block.max(1).into(), shares, choose, votes };
        (numbering, SecondRound { fencing, chosen, votes: answers })
    }

    /// Has a majority store a token that is larger than all proposals of a majority. Returns it. If no majority stores one,
    /// the votes of those that granted and did not store it become errors. Without a majority of grants it does nothing.
    pub(super) async fn number(
        mut self,
        tally: &mut Tally<Acquired>,
        limit: Duration,
    ) -> Option<u64> {
        let start = Instant::now();
        let majority = tally.majority();
        if tally.votes(granted).yes < majority {
            return None;
        }
        let is_granted: Vec<bool> = tally
            .answers
            .iter()
            .map(|answer| answer.as_ref().is_some_and(|answer| answer.as_ref().is_ok_and(granted)))
            .collect();
        let proposals = tally.verdicts().filter_map(|verdict| match verdict {
            Acquired::Granted { fence, .. } => *fence,
            _ => None,
        });
        let Some(mut first) = proposals.max() else {
            // It breaks the contract, so its grants do not count.
            let grants = tally.answers.iter_mut().zip(&is_granted).filter(|(_, granted)| **granted);
            grants.for_each(|(vote, _)| *vote = Some(Err(not_proposed())));
            return None;
        };
        // The nodes whose proposals are not larger than the token.
        let shared: Vec<bool> = is_granted.iter().map(|granted| *granted && self.shares).collect();
        for _ in 0..MOST_TOKENS {
            let begun = Instant::now();
            self.choose.send_replace(Some(first));
            let clear = |votes: &Tally<TokenVote>| {
                let count = Count::of(votes, first, &shared);
                count.stored >= majority || count.stored + count.pending < majority
            };
            let answered = |votes: &Tally<TokenVote>| {
                let open = |(answer, granted): (&Option<Result<TokenVote>>, &bool)| {
                    *granted && is_pending(answer, first)
                };
                !votes.answers.iter().zip(&is_granted).any(open)
            };
            let left = |limit: Duration| limit.saturating_sub(start.elapsed());
            self.votes.collect(left(limit), |votes| clear(votes) || answered(votes)).await;
            // The grants block others meanwhile, so nodes that were slow before get little time.
            let more = (begun.elapsed() * 2).max(SHORTEST_WAIT);
            self.votes.collect(more.min(left(limit)), clear).await;
            let count = Count::of(&self.votes, first, &shared);
            if count.stored >= majority {
                return Some(first);
            }
            if count.outrun == 0 || count.stored + count.outrun + count.pending < majority {
                break;
            }
            Rare::QuorumTokenRepeated.reached();
            let leap = (random() * LONGEST_LEAP) as u64;
            first = count.last.max(first + self.block - 1) + 1 + leap;
        }
        for (vote, token) in tally.answers.iter_mut().zip(self.votes.answers) {
            if vote.as_ref().is_some_and(|vote| vote.as_ref().is_ok_and(granted)) {
                match token {
                    Some(Ok(TokenVote::Stored { first: stored })) if stored == first => {}
                    Some(Ok(_)) => *vote = Some(Err(outrun())),
                    Some(Err(error)) => *vote = Some(Err(error)),
                    None => *vote = None,
                }
            }
        }
        None
    }
}

fn is_pending(answer: &Option<Result<TokenVote>>, first: u64) -> bool {
    match answer {
        None => true,
        Some(Ok(vote)) => !vote.is_for(first),
        Some(Err(_)) => false,
    }
}

/// The number of nodes for each answer to one token.
#[derive(Default)]
struct Count {
    stored: usize,
    outrun: usize,
    pending: usize,
    /// The largest last token of the nodes that had one.
    last: u64,
}

impl Count {
    /// Counts the votes for a token. `shared`: the nodes where as large a token is that of another reader.
    fn of(votes: &Tally<TokenVote>, token: u64, shared: &[bool]) -> Self {
        let mut count = Self::default();
        for (answer, shared) in votes.answers.iter().zip(shared) {
            match answer {
                Some(Ok(vote)) if vote.is_for(token) && (*shared || vote.is_stored()) => {
                    count.stored += 1;
                }
                Some(Ok(TokenVote::Outrun { first, last })) if *first == token => {
                    count.outrun += 1;
                    count.last = count.last.max(*last);
                }
                answer if is_pending(answer, token) => count.pending += 1,
                _ => {}
            }
        }
        count
    }
}

/// Returns the vote of a node that has numbered others meanwhile.
fn outrun() -> Error {
    let message = "it has given as large a fencing token to another grant meanwhile";
    Error::new(ErrorKind::Unavailable, message).with_fate(Fate::Executed)
}

/// Returns the vote of a node that has granted the name without a proposal.
fn not_proposed() -> Error {
    Error::protocol("it granted the name without the fencing token that it was asked to propose")
}
