//! The certificates of TLS connections, and the library that makes these connections.

use std::path::PathBuf;

/// The library that makes TLS connections, for [`Builder::tls_library`](crate::Builder::tls_library).
///
/// Each one is a feature of this crate. Where several are on, the first of this list is used, unless another one is chosen:
///
/// 1. [`Rustls`](Self::Rustls)
/// 2. [`RustlsAwsLc`](Self::RustlsAwsLc)
/// 3. [`NativeTls`](Self::NativeTls)
///
/// Cargo adds up the features that the crates of a build want. So a build with `rustls` keeps it when another crate turns on
/// one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TlsLibrary {
    /// [rustls](https://docs.rs/rustls) with the cryptography of ring: the feature `rustls`.
    Rustls,
    /// rustls with the cryptography of AWS-LC: the feature `rustls-aws-lc`.
    RustlsAwsLc,
    /// [native-tls](https://docs.rs/native-tls), the library of the platform, which is OpenSSL on Linux: the feature
    /// `native-tls`.
    NativeTls,
}

/// The settings of TLS connections.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    /// Certificates of authorities.
    pub(crate) ca: Option<Pem>,
    pub(crate) identity: Option<Identity>,
    pub(crate) library: Option<TlsLibrary>,
}

/// Text in PEM. It may be a private key, so it has no `Debug`.
#[derive(Clone)]
pub(crate) enum Pem {
    Given(Vec<u8>),
    /// Read each time a connection is made.
    File(PathBuf),
}

/// A chain of certificates and its private key.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) chain: Pem,
    pub(crate) key: Pem,
}

impl TlsSettings {
    /// Returns the name of a setting, if one is set.
    pub(crate) fn name(&self) -> Option<&'static str> {
        let ca = self.ca.as_ref().map(|pem| pem.choose("tls_ca", "tls_ca_file"));
        let identity = self.identity.as_ref();
        let identity =
            identity.map(|identity| identity.key.choose("tls_identity", "tls_identity_files"));
        ca.or(identity).or(self.library.map(|_| "tls_library"))
    }
}

impl Pem {
    /// Returns one word for what was given, and another one for a file.
    pub(crate) fn choose(&self, given: &'static str, file: &'static str) -> &'static str {
        match self {
            Self::Given(_) => given,
            Self::File(_) => file,
        }
    }
}
