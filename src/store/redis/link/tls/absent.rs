//! Stands in for TLS, which is not compiled in.

use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::tls::TlsSettings;
use fred::error::{Error as Failure, ErrorKind as Kind};
use fred::types::config::Config;
use std::time::Duration;

/// What never is.
#[derive(Clone)]
pub(in crate::store::redis::link) enum Tls {}

impl Tls {
    pub(in crate::store::redis::link) fn new(_: &TlsSettings) -> Result<Self> {
        Err(Error::new(
            ErrorKind::Unsupported,
            "TLS is not compiled in; turn on leasehold's feature \"rustls\", \"rustls-aws-lc\" or \"native-tls\"",
        ))
    }

    pub(in crate::store::redis::link) fn reads_files(&self) -> bool {
        match *self {}
    }

    pub(in crate::store::redis::link) async fn configure(
        &self,
        _: &mut Config,
        _: Duration,
    ) -> Result<(), Failure> {
        match *self {}
    }
}

pub(in crate::store::redis::link) fn is_failure(_: &Kind) -> bool {
    false
}
