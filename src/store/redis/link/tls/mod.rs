//! TLS, the only room that names the libraries which make TLS connections.
//!
//! [`Tls`] makes what fred needs for a connection. Without a file in the settings it is made once. With one it is made again
//! for each connection, by a [`reader`] on a thread of its own, from the [`material`] by one of the libraries: [`rustls`] or
//! [`native`]. Without a feature for TLS, [`absent`] refuses it.

#[cfg(not(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls")))]
mod absent;
#[cfg(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls"))]
mod connector;
#[cfg(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls"))]
mod material;
#[cfg(feature = "native-tls")]
mod native;
#[cfg(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls"))]
mod reader;
#[cfg(any(feature = "rustls", feature = "rustls-aws-lc"))]
mod rustls;

#[cfg(not(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls")))]
pub(super) use absent::{Tls, is_failure};
#[cfg(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls"))]
pub(super) use connector::{Tls, is_failure};

/// Begins the message of each failure to read the files.
pub(super) const FAILED: &str = "no certificates for TLS: ";
/// Begins the message where a path leads to no file, and no file has been there.
pub(super) const MISSING: &str = "no such file for TLS: ";
