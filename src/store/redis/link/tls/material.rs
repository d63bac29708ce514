//! Reads certificates and keys in PEM, and says what is wrong with them. The libraries accept different texts; here all accept
//! the same.

use crate::store::connect::tls::{Pem, TlsSettings};
use std::borrow::Cow;
use std::io::ErrorKind::NotFound;
use std::io::Read;
use std::path::Path;

/// What a library makes a connector of.
#[derive(PartialEq, Eq)]
pub(super) struct Material {
    /// `None`: the certificates of the platform.
    pub(super) ca: Option<Vec<Vec<u8>>>,
    pub(super) identity: Option<Pair>,
}

/// A chain of certificates and its key, each certificate a PEM of its own.
#[derive(PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) chain: Vec<Vec<u8>>,
    pub(super) key: Key,
}

/// A private key in PEM.
#[derive(PartialEq, Eq)]
pub(super) struct Key {
    #[cfg_attr(not(feature = "native-tls"), allow(dead_code, reason = "rustls reads every form"))]
    pub(super) form: Form,
    pub(super) pem: Vec<u8>,
}

/// The form of a private key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Pkcs8,
    Pkcs1,
    Sec1,
}

/// What is wrong, and with what. It has no bytes of a key.
#[derive(Debug)]
pub(super) struct Flaw {
    part: Part,
    says: Cow<'static, str>,
    /// Whether there is no file at a path.
    pub(super) is_missing: bool,
}

/// A part of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Ca,
    Chain,
    Key,
    /// The chain and the key together.
    Identity,
    Library,
}

const CERTIFICATE: &str = "CERTIFICATE";
const NO_CERTIFICATE: &str = "has no certificate; expected X.509 certificates in PEM, each of which begins with -----BEGIN CERTIFICATE-----";
pub(super) const INVALID: &str =
    "has a certificate that cannot be read; expected X.509 certificates of version 3 in PEM";
pub(super) const NO_FIT: &str =
    "do not fit together; expected the private key of the first certificate of the chain";
const NO_KEY: &str =
    "has no private key; expected one in PEM, which begins with -----BEGIN PRIVATE KEY-----";
const ENCRYPTED: &str = "has a private key with a passphrase; expected one without; write it by openssl pkcs8 -topk8 -nocrypt -in old.key -out new.key";

impl Material {
    /// Reads what the settings name. May block.
    pub(super) fn read(settings: &TlsSettings) -> Result<Self, Flaw> {
        let ca = settings.ca.as_ref().map(|pem| certificates(pem, Part::Ca)).transpose()?;
        let identity = settings.identity.as_ref().map(|identity| {
            let chain = certificates(&identity.chain, Part::Chain)?;
            Ok(Pair { chain, key: key(&identity.key)? })
        });
        Ok(Self { ca, identity: identity.transpose()? })
    }
}

/// Refuses text in PEM in the place of a path. It may be a private key, so it is not shown.
pub(super) fn refuse_text_as_path(settings: &TlsSettings) -> crate::error::Result<()> {
    let refused = |file: &str, given: &str| {
        let says = format!("{file} expects a path, and got text in PEM; give text to {given}");
        Err(crate::error::Error::invalid(says))
    };
    if settings.ca.as_ref().is_some_and(is_text_as_path) {
        return refused("tls_ca_file", "tls_ca");
    }
    match &settings.identity {
        Some(identity) if is_text_as_path(&identity.chain) || is_text_as_path(&identity.key) => {
            refused("tls_identity_files", "tls_identity")
        }
        _ => Ok(()),
    }
}

fn is_text_as_path(pem: &Pem) -> bool {
    let Pem::File(path) = pem else { return false };
    let path = path.to_string_lossy();
    path.contains(['\n', '\r']) || path.contains("-----BEGIN")
}

impl Flaw {
    pub(super) fn new(part: Part, says: impl Into<Cow<'static, str>>) -> Self {
        Self { part, says: says.into(), is_missing: false }
    }

    pub(super) fn of_library(says: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Part::Library, says)
    }

    /// Describes it, with the setting and the file.
    pub(super) fn text(&self, settings: &TlsSettings) -> String {
        let identity = settings.identity.as_ref();
        let pem = match self.part {
            Part::Ca => settings.ca.as_ref(),
            Part::Chain | Part::Identity => identity.map(|identity| &identity.chain),
            Part::Key => identity.map(|identity| &identity.key),
            Part::Library => None,
        };
        let what = match (self.part, pem) {
            (Part::Ca, Some(Pem::File(path))) => file(path, "tls_ca_file"),
            (Part::Chain | Part::Key, Some(Pem::File(path))) => file(path, "tls_identity_files"),
            (Part::Identity, Some(Pem::File(path))) => {
                let key = identity.map(|identity| match &identity.key {
                    Pem::File(key) => format!(" and {}", key.display()),
                    Pem::Given(_) => " and the key".to_owned(),
                });
                file(path, "tls_identity_files") + &key.unwrap_or_default()
            }
            (Part::Ca, _) => "what is given to tls_ca".to_owned(),
            (Part::Chain, _) => "the chain that is given to tls_identity".to_owned(),
            (Part::Key, _) => "the key that is given to tls_identity".to_owned(),
            (Part::Identity, _) => {
                "the chain and the key that are given to tls_identity".to_owned()
            }
            (Part::Library, _) => "the library for TLS".to_owned(),
        };
        // Both are rarely replaced in one moment.
        let advice = match (self.part, pem) {
            (Part::Identity, Some(Pem::File(_))) => "; it is tried again",
            _ => "",
        };
        format!("{what} {}{advice}", self.says)
    }
}

fn file(path: &Path, setting: &str) -> String {
    format!("the file {} of {setting}", path.display())
}

fn bytes(pem: &Pem, part: Part) -> Result<Cow<'_, [u8]>, Flaw> {
    match pem {
        Pem::Given(bytes) => Ok(Cow::Borrowed(bytes)),
        Pem::File(path) => read_file(path).map(Cow::Owned).map_err(|why| {
            let says =
                format!("cannot be read: {why}; let this process read it, or correct the path");
            let is_missing = std::fs::metadata(path).is_err_and(|error| error.kind() == NotFound);
            Flaw { is_missing, ..Flaw::new(part, says) }
        }),
    }
}

/// More than any list of authorities has.
const LARGEST: u64 = 4 << 20;

/// Reads a regular file that is not too large. A pipe would wait for a writer, perhaps forever.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    // An error of the system shows no content.
    let of_system = |error: std::io::Error| error.to_string();
    if !std::fs::metadata(path).map_err(of_system)?.is_file() {
        return Err("it is no regular file".to_owned());
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(of_system)?;
    file.take(LARGEST + 1).read_to_end(&mut text).map_err(of_system)?;
    match text.len() as u64 <= LARGEST {
        true => Ok(text),
        false => Err(format!("it has more than {LARGEST} bytes")),
    }
}

fn certificates(pem: &Pem, part: Part) -> Result<Vec<Vec<u8>>, Flaw> {
    let text = bytes(pem, part)?;
    let found = blocks(&text).into_iter().filter(|block| block.label == CERTIFICATE);
    let found: Vec<Vec<u8>> = found.map(|block| block.pem.to_vec()).collect();
    if found.is_empty() { Err(Flaw::new(part, NO_CERTIFICATE)) } else { Ok(found) }
}

/// Reads the first private key.
fn key(pem: &Pem) -> Result<Key, Flaw> {
    let text = bytes(pem, Part::Key)?;
    for Block { label, pem } in blocks(&text) {
        let form = match label {
            "PRIVATE KEY" => Form::Pkcs8,
            "RSA PRIVATE KEY" => Form::Pkcs1,
            "EC PRIVATE KEY" => Form::Sec1,
            "ENCRYPTED PRIVATE KEY" => return Err(Flaw::new(Part::Key, ENCRYPTED)),
            _ => continue,
        };
        if find(pem, b"Proc-Type: 4,ENCRYPTED").is_some() {
            return Err(Flaw::new(Part::Key, ENCRYPTED));
        }
        return Ok(Key { form, pem: pem.to_vec() });
    }
    Err(Flaw::new(Part::Key, NO_KEY))
}

/// A piece of PEM, from its `BEGIN` to its `END`.
struct Block<'a> {
    label: &'a str,
    pem: &'a [u8],
}

/// Finds all whole blocks, whatever is between them.
fn blocks(text: &[u8]) -> Vec<Block<'_>> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const DASHES: &[u8] = b"-----";
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = find(rest, BEGIN) {
        let block = &rest[start..];
        let label = &block[BEGIN.len()..];
        rest = label;
        let Some(length) = find(label, DASHES) else { break };
        let Ok(label) = std::str::from_utf8(&label[..length]) else { continue };
        let end = format!("-----END {label}-----");
        let Some(at) = find(block, end.as_bytes()) else { continue };
        let pem = &block[..at + end.len()];
        found.push(Block { label, pem });
        rest = &block[pem.len()..];
    }
    found
}

fn find(text: &[u8], words: &[u8]) -> Option<usize> {
    text.windows(words.len()).position(|window| window == words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::connect::tls::Identity;

    fn block(label: &str, body: &str) -> String {
        format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    }

    #[test]
    fn blocks_are_found_among_other_text() {
        let text = format!(
            "subject=CN=a\n{}\r\n-----BEGIN broken\n{}trailing",
            block("EC PARAMETERS", "a"),
            block(CERTIFICATE, "b")
        );
        let found: Vec<&str> = blocks(text.as_bytes()).iter().map(|block| block.label).collect();
        assert_eq!(found, ["EC PARAMETERS", CERTIFICATE]);
        assert!(blocks(b"-----BEGIN CERTIFICATE-----\nno end").is_empty());
        assert!(blocks(b"").is_empty());
    }

    #[test]
    fn form_of_a_key_is_read_from_its_label() {
        for (text, form) in [
            (block("PRIVATE KEY", "hunter2"), Ok(Form::Pkcs8)),
            (block("RSA PRIVATE KEY", "hunter2"), Ok(Form::Pkcs1)),
            (block("EC PARAMETERS", "a") + &block("EC PRIVATE KEY", "hunter2"), Ok(Form::Sec1)),
            (block("ENCRYPTED PRIVATE KEY", "hunter2"), Err("with a passphrase")),
            (block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nhunter2"), Err("with a passphrase")),
            (block(CERTIFICATE, "a"), Err("has no private key")),
        ] {
            match (key(&Pem::Given(text.clone().into_bytes())), form) {
                (Ok(key), Ok(form)) => assert_eq!(key.form, form, "{text}"),
                (Err(flaw), Err(says)) => {
                    let shown = format!("{flaw:?}");
                    assert!(flaw.says.contains(says) && !shown.contains("hunter2"), "{shown}");
                }
                (_, form) => panic!("{text}: not {form:?}"),
            }
        }
    }

    #[test]
    fn text_given_as_a_path_is_refused_and_not_shown() {
        let path = |text: &str| Pem::File(text.into());
        let identity = |chain: &str, key: &str| TlsSettings {
            identity: Some(Identity { chain: path(chain), key: path(key) }),
            ..TlsSettings::default()
        };
        let secret = block("PRIVATE KEY", "hunter2");
        let ca = TlsSettings { ca: Some(path(&secret)), ..TlsSettings::default() };
        for (settings, says) in [
            (identity("a.crt", &secret), "give text to tls_identity"),
            (identity(&secret, "a.key"), "give text to tls_identity"),
            (ca, "give text to tls_ca"),
        ] {
            let error = refuse_text_as_path(&settings).unwrap_err();
            assert!(error.message().ends_with(says), "{error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        refuse_text_as_path(&identity("a.crt", "a.key")).unwrap();
    }

    /// A pipe would wait for a writer, and a device has no end.
    #[cfg(unix)]
    #[test]
    fn only_regular_files_of_some_size_are_read() {
        let large = tempfile::NamedTempFile::new().unwrap();
        large.as_file().set_len(LARGEST + 1).unwrap();
        for (path, says) in [
            (Path::new("/dev/zero"), "no regular file"),
            (Path::new("/"), "no regular file"),
            (large.path(), "more than 4194304 bytes"),
        ] {
            let why = read_file(path).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn flaw_names_the_setting_and_the_file() {
        let read = |settings: &TlsSettings| {
            Material::read(settings).map(drop).map_err(|flaw| flaw.text(settings)).unwrap_err()
        };
        let of = |ca: Pem| TlsSettings { ca: Some(ca), ..TlsSettings::default() };
        let missing = read(&of(Pem::File("/no/ca.pem".into())));
        assert!(
            missing.starts_with("the file /no/ca.pem of tls_ca_file cannot be read"),
            "{missing}"
        );
        let empty = read(&of(Pem::Given(Vec::new())));
        assert!(empty.starts_with("what is given to tls_ca has no certificate"), "{empty}");
        let chain = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(chain.path(), block(CERTIFICATE, "a")).unwrap();
        let identity = Identity {
            chain: Pem::File(chain.path().to_owned()),
            key: Pem::File("/no/client.key".into()),
        };
        let identity = read(&TlsSettings { identity: Some(identity), ..TlsSettings::default() });
        assert!(
            identity.starts_with("the file /no/client.key of tls_identity_files"),
            "{identity}"
        );
    }
}
