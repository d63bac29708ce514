//! Tests that all stores share: the contract, a model that they must agree with, and linearizability; and the
//! protocol that they keep together with the engine, checked without their code.

mod conformance;
mod family;
mod history;
mod linearizable;
mod linearizable_modes;
mod model;
mod modes;
mod protocol;
mod shared;
