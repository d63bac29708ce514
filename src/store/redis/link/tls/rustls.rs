//! TLS by rustls.

use super::material::{Flaw, Material, Part};
use fred::rustls::crypto::CryptoProvider;
use fred::rustls::pki_types::pem::PemObject;
use fred::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use fred::rustls::{ClientConfig, Error, RootCertStore};
use fred::types::config::TlsConnector;
use std::sync::Arc;

#[cfg(feature = "rustls")]
pub(super) fn ring() -> CryptoProvider {
    fred::rustls::crypto::ring::default_provider()
}

#[cfg(feature = "rustls-aws-lc")]
pub(super) fn aws_lc() -> CryptoProvider {
    fred::rustls::crypto::aws_lc_rs::default_provider()
}

/// Makes a connector. It names its provider: with two of them rustls has no default, and panics.
pub(super) fn connector(
    material: &Material,
    provider: CryptoProvider,
) -> Result<TlsConnector, Flaw> {
    let mut roots = RootCertStore::empty();
    match &material.ca {
        Some(ca) => {
            for certificate in certificates(ca, Part::Ca)? {
                roots.add(certificate).map_err(|_| invalid(Part::Ca))?;
            }
        }
        // Platforms have some that rustls does not understand.
        None => {
            let platform = fred::rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(platform.certs);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Flaw::of_library(format!("has no version of TLS: {error}")))?
        .with_root_certificates(roots);
    let client = match &material.identity {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let key = PrivateKeyDer::from_pem_slice(&pair.key.pem);
            let key = key.map_err(|_| unusable_key())?;
            let chain = certificates(&pair.chain, Part::Chain)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| match error {
                Error::InconsistentKeys(_) => Flaw::new(Part::Identity, super::material::NO_FIT),
                Error::InvalidCertificate(_) => invalid(Part::Chain),
                _ => unusable_key(),
            })?
        }
    };
    Ok(client.into())
}

fn certificates(pems: &[Vec<u8>], part: Part) -> Result<Vec<CertificateDer<'static>>, Flaw> {
    let read = pems.iter().map(|pem| CertificateDer::from_pem_slice(pem));
    read.collect::<Result<_, _>>().map_err(|_| invalid(part))
}

fn invalid(part: Part) -> Flaw {
    Flaw::new(part, super::material::INVALID)
}

fn unusable_key() -> Flaw {
    Flaw::new(
        Part::Key,
        "has a private key that cannot be used; expected one of RSA, ECDSA on P-256 or P-384, or Ed25519",
    )
}
