//! Configures TLS with the user's own certificates.

use crate::error::{Error, ErrorKind, Result};
use crate::store::connect::remote::Remote;
use fred::types::config::Config;

#[cfg(not(feature = "rustls"))]
pub(super) fn is_on(_: &Config) -> bool {
    false
}

/// Returns whether connections use TLS.
#[cfg(feature = "rustls")]
pub(super) fn is_on(config: &Config) -> bool {
    config.tls.is_some()
}

#[cfg(not(feature = "rustls"))]
pub(super) fn configure(_: &mut Config, _: &Remote) -> Result<()> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "TLS is not compiled in; turn on leasehold's feature \"rustls\"",
    ))
}

#[cfg(feature = "rustls")]
pub(super) fn configure(config: &mut Config, remote: &Remote) -> Result<()> {
    use fred::rustls::crypto::ring::default_provider;
    use fred::rustls::pki_types::pem::PemObject;
    use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use fred::rustls::{ClientConfig, RootCertStore};
    use fred::types::config::TlsConnector;
    use std::sync::Arc;

    if config.tls.is_none() {
        return Err(Error::invalid(
            "certificates are for TLS; write rediss:// (or rediss-sentinel://, rediss-cluster://)",
        ));
    }
    // The errors contain no bytes of a key.
    let invalid = |what: &'static str| Error::invalid(what);
    let certificates = |pem: &[u8]| -> Result<Vec<CertificateDer<'static>>> {
        let read: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let read = read.map_err(|_| invalid("a certificate is not in PEM"))?;
        if read.is_empty() { Err(invalid("there is no certificate in the PEM")) } else { Ok(read) }
    };

    let mut roots = RootCertStore::empty();
    match &remote.ca {
        Some(pem) => {
            for certificate in certificates(pem)? {
                roots.add(certificate).map_err(|_| {
                    invalid("a CA certificate is invalid; expected an X.509 certificate in PEM")
                })?;
            }
        }
        None => {
            let platform = fred::rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(platform.certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| {
            Error::new(ErrorKind::Unsupported, "no version of TLS is compiled in")
                .with_source(error)
        })?
        .with_root_certificates(roots);
    let client = match &remote.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| invalid("there is no private key in the PEM"))?;
            builder.with_client_auth_cert(certificates(chain)?, key).map_err(|error| {
                invalid("the client's certificate (X.509 v3) and its key do not fit")
                    .with_source(error)
            })?
        }
    };
    config.tls = Some(TlsConnector::from(client).into());
    Ok(())
}
