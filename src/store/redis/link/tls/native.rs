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
    // OpenSSL has a place for the key of each algorithm, and uses no certificate for one that is in another place.
    let certificate = pair.chain.first().and_then(|pem| algorithm(pem));
    if certificate
        .is_some_and(|certificate| algorithm(&pair.key.pem).is_some_and(|key| key != certificate))
    {
        return Err(Flaw::new(Part::Identity, NO_FIT));
    }
    // With a line break between them.
    let chain = pair.chain.join(&b'\n');
    Identity::from_pkcs8(&chain, &pair.key.pem).map_err(|_| {
        Flaw::new(Part::Key, "has a private key that cannot be used; expected one of RSA or ECDSA")
    })
}

/// The algorithm of a public or private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Rsa,
    EllipticCurve,
    Ed25519,
}

/// Returns the algorithm of the key in a certificate or in PKCS#8, by its object identifier, which both name once: signatures
/// have identifiers of their own. `None` for another one.
fn algorithm(pem: &[u8]) -> Option<Algorithm> {
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
    const ELLIPTIC_CURVE: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    let der = decode(pem);
    let has = |identifier: &[u8]| {
        // A tag and the length come before it.
        let named = [&[6, identifier.len() as u8], identifier].concat();
        der.windows(named.len()).any(|window| window == named)
    };
    // That of Ed25519 is its signature's, too. A certificate of another algorithm may be signed by such a key.
    if has(RSA) {
        Some(Algorithm::Rsa)
    } else if has(ELLIPTIC_CURVE) {
        Some(Algorithm::EllipticCurve)
    } else {
        has(&[0x2b, 0x65, 0x70]).then_some(Algorithm::Ed25519)
    }
}

/// Decodes the base64 between the lines that begin with dashes. What is no base64 is left out, and found by the library.
fn decode(pem: &[u8]) -> Vec<u8> {
    let lines = pem.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"-"));
    let digits = lines.flatten().filter_map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    });
    let mut bytes = Vec::with_capacity(pem.len() / 4 * 3);
    let mut bits = 0_u32;
    let mut count = 0;
    for digit in digits {
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v\nYmFy", b"foobar")]
        {
            let pem = format!("-----BEGIN A-----\n{text}\n-----END A-----");
            assert_eq!(decode(pem.as_bytes()), bytes, "{text}");
        }
    }

    #[test]
    fn algorithm_of_a_key_and_of_its_certificate_are_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for (options, algorithm) in [
            (&["rsa:2048"][..], Algorithm::Rsa),
            (&["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"], Algorithm::EllipticCurve),
            (&["ed25519"], Algorithm::Ed25519),
        ] {
            let [key, certificate] = ["key", "certificate"].map(|name| dir.path().join(name));
            let made = Command::new("openssl")
                .args(["req", "-x509", "-nodes", "-subj", "/CN=a", "-newkey"])
                .args(options)
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&certificate)
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
            for path in [key, certificate] {
                let pem = std::fs::read(path).unwrap();
                assert_eq!(super::algorithm(&pem), Some(algorithm), "{options:?}");
            }
        }
    }
}
