//! Makes what fred needs for TLS, with the library that is chosen.

use super::material::{Flaw, Material, refuse_text_as_path};
use super::reader::Reader;
use super::{FAILED, MISSING};
use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::tls::{Pem, TlsLibrary, TlsSettings};
use fred::error::{Error as Failure, ErrorKind as Kind};
use fred::types::config::{Config, ServerConfig, TlsConfig, TlsConnector};
use std::time::Duration;

/// The TLS of the connections to an address.
#[derive(Clone)]
pub(in crate::store::redis::link) enum Tls {
    Made(TlsConfig),
    /// Made again for each connection.
    Read(Reader),
}

impl Tls {
    /// Checks the settings. Files are not read yet.
    pub(in crate::store::redis::link) fn new(settings: &TlsSettings) -> Result<Self> {
        let library = choose(settings.library)?;
        refuse_text_as_path(settings)?;
        let is_given = |pem: &Pem| matches!(pem, Pem::Given(_));
        // What is given stays as it is, so it is refused at once.
        let given = TlsSettings {
            ca: settings.ca.clone().filter(is_given),
            identity: settings.identity.clone().filter(|identity| is_given(&identity.key)),
            library: settings.library,
        };
        let make = || {
            let made = Material::read(&given).and_then(|material| make(library, &material));
            made.map_err(|flaw| Error::invalid(flaw.text(&given)))
        };
        let reads_files = settings.ca.is_some() != given.ca.is_some()
            || settings.identity.is_some() != given.identity.is_some();
        if !reads_files {
            return Ok(Self::Made(make()?));
        }
        // Otherwise it would only load the certificates of the platform.
        if given.ca.is_some() || given.identity.is_some() {
            make()?;
        }
        Ok(Self::Read(Reader::new(library, settings.clone())))
    }

    /// Returns whether each connection needs a client of its own: one of fred keeps what it has read.
    pub(in crate::store::redis::link) fn reads_files(&self) -> bool {
        matches!(self, Self::Read(_))
    }

    /// Has the connections of a client use TLS. Reads the files, for at most `limit`.
    pub(in crate::store::redis::link) async fn configure(
        &self,
        config: &mut Config,
        limit: Duration,
    ) -> Result<(), Failure> {
        config.tls = Some(match self {
            Self::Made(made) => made.clone(),
            Self::Read(reader) => {
                let read = reader.read(limit).await;
                // It begins with words by which `classify` knows it again.
                read.map_err(|unread| {
                    let begin = if unread.was_never_there { MISSING } else { FAILED };
                    Failure::new(Kind::Unknown, format!("{begin}{}", unread.why))
                })?
            }
        });
        name_address(&mut config.server);
        Ok(())
    }
}

/// Names a server for TLS by its IPv6 address, without the brackets that a URL has around it.
fn name_address(server: &mut ServerConfig) {
    if let ServerConfig::Centralized { server } = server
        && let Some(address) = server.host.strip_prefix('[').and_then(|host| host.strip_suffix(']'))
    {
        server.tls_server_name = Some(address.into());
    }
}

/// Makes a connector.
pub(super) fn make(library: TlsLibrary, material: &Material) -> Result<TlsConfig, Flaw> {
    let connector: TlsConnector = match library {
        #[cfg(feature = "rustls")]
        TlsLibrary::Rustls => super::rustls::connector(material, super::rustls::ring())?,
        #[cfg(feature = "rustls-aws-lc")]
        TlsLibrary::RustlsAwsLc => super::rustls::connector(material, super::rustls::aws_lc())?,
        #[cfg(feature = "native-tls")]
        TlsLibrary::NativeTls => super::native::connector(material)?,
        #[allow(unreachable_patterns, reason = "some are compiled in")]
        _ => return Err(Flaw::of_library("is not compiled in")),
    };
    Ok(connector.into())
}

/// All libraries, in the order of preference. fred has an order of its own for the connectors that it makes, which are not used.
const ORDER: [TlsLibrary; 3] = [TlsLibrary::Rustls, TlsLibrary::RustlsAwsLc, TlsLibrary::NativeTls];

/// Returns the library that was chosen, or the first one that is compiled in.
fn choose(chosen: Option<TlsLibrary>) -> Result<TlsLibrary> {
    let library = chosen.or_else(|| ORDER.into_iter().find(|library| is_compiled(*library)));
    match library {
        Some(library) if is_compiled(library) => Ok(library),
        _ => {
            let feature = feature(library.unwrap_or(ORDER[0]));
            Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the library that is chosen by tls_library is not compiled in; turn on leasehold's feature {feature:?}"
                ),
            ))
        }
    }
}

fn feature(library: TlsLibrary) -> &'static str {
    match library {
        TlsLibrary::Rustls => "rustls",
        TlsLibrary::RustlsAwsLc => "rustls-aws-lc",
        TlsLibrary::NativeTls => "native-tls",
    }
}

fn is_compiled(library: TlsLibrary) -> bool {
    match library {
        TlsLibrary::Rustls => cfg!(feature = "rustls"),
        TlsLibrary::RustlsAwsLc => cfg!(feature = "rustls-aws-lc"),
        TlsLibrary::NativeTls => cfg!(feature = "native-tls"),
    }
}

/// Returns whether a failure of fred is one of TLS.
pub(in crate::store::redis::link) fn is_failure(kind: &Kind) -> bool {
    *kind == Kind::Tls
}
