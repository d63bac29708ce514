//! TLS by the library of the platform, through native-tls.

use super::material::{Flaw, Form, INVALID, Material, NO_FIT, Pair, Part};
use fred::types::config::TlsConnector as Connector;
use native_tls::{Certificate, Identity, Protocol, TlsConnector};

/// Makes a connector.
pub(super) fn connector(material: &Material) -> Result<Connector, Flaw> {
    let mut builder = TlsConnector::builder();
    // As rustls has it.
    builder.min_protocol_version(Some(Protocol::Tlsv12));
    if let Some(ca) = &material.ca {
        builder.disable_built_in_roots(true);
        for pem in ca {
            builder.add_root_certificate(certificate(pem, Part::Ca)?);
        }
    }
    if let Some(pair) = &material.identity {
        builder.identity(identity(pair)?);
    }
    let built = builder.build().map_err(|error| match material.identity {
        // Each of them was read, so they do not fit.
        Some(_) => Flaw::new(Part::Identity, NO_FIT),
        None => Flaw::of_library(format!("cannot be used: {error}")),
    })?;
    Ok(built.into())
}

fn certificate(pem: &[u8], part: Part) -> Result<Certificate, Flaw> {
    Certificate::from_pem(pem).map_err(|_| Flaw::new(part, INVALID))
}

fn identity(pair: &Pair) -> Result<Identity, Flaw> {
    let other = match pair.key.form {
        Form::Pkcs8 => None,
        Form::Pkcs1 => Some("PKCS#1"),
        Form::Sec1 => Some("SEC 1"),
    };
    if let Some(form) = other {
        return Err(Flaw::new(
            Part::Key,
            format!(
                "has a private key in {form}; native-tls expects PKCS#8, which begins with -----BEGIN PRIVATE KEY-----; write it \
                 by openssl pkcs8 -topk8 -nocrypt -in old.key -out new.key"
            ),
        ));
    }
    for pem in &pair.chain {
        certificate(pem, Part::Chain)?;
    }
    // With a line break between them.
    let chain = pair.chain.join(&b'\n');
    Identity::from_pkcs8(&chain, &pair.key.pem).map_err(|_| {
        Flaw::new(Part::Key, "has a private key that cannot be used; expected one of RSA or ECDSA")
    })
}
