//! Classifies the failures of fred.

use super::tls;
use crate::error::{Error, ErrorKind, Fate};
use crate::store::connect::outage::Step;
use crate::store::connect::provider;

use crate::store::redis::scripts::reply::{self, WRONG_USER};
use fred::error::ErrorKind as Kind;

/// A failure as fred reports it.
pub(in crate::store::redis) type Failure = fred::error::Error;

/// Begins the text of a failure of a call that waited for a connection and was not given to fred. The reason follows.
const NOT_CONNECTED: &str = "leasehold: no connection. ";

/// The message of the error of such a call.
const NOTHING_SENT: &str = "there is no connection to the server; the last request was not sent";

pub(super) fn unsent(why: Option<&Failure>) -> Failure {
    let (kind, text) = why.map_or((Kind::Routing, ""), |why| (why.kind().clone(), why.details()));
    Failure::new(kind, format!("{NOT_CONNECTED}{text}"))
}

/// Returns whether a call was not sent for lack of a connection, so that no other call would be sent either.
pub(in crate::store::redis) fn is_unsent(error: &Error) -> bool {
    error.fate() == Fate::NotExecuted && error.message().contains(NOTHING_SENT)
}

/// The texts of fred for commands that it had sent before the connection was lost, and for those that it had not. In neither
/// case is it known that the command did not run.
const LOST: [&str; 3] =
    ["Too many failed write attempts", "Failed to route command", "channel closed"];

/// Classifies a failure: first by the server's words, then by the kind that fred gives it.
pub(in crate::store::redis) fn classify(error: &Failure) -> Error {
    let text = error.details();
    if let Some(why) = text.strip_prefix(NOT_CONNECTED) {
        if why.is_empty() {
            let error = Error::new(ErrorKind::Unavailable, NOTHING_SENT);
            return error.with_fate(Fate::NotExecuted).for_all_names();
        }
        // A refused password is no outage, also when it is refused later.
        let why = classify(&Failure::new(error.kind().clone(), why.to_owned()));
        let message = format!("{NOTHING_SENT}: {}", why.message());
        let error = Error::new(why.kind(), message).with_fate(Fate::NotExecuted).with_source(why);
        return error.for_all_names();
    }
    let is_missing = text.starts_with(tls::MISSING);
    if is_missing || text.starts_with(provider::FAILED) || text.starts_with(tls::FAILED) {
        let kind = if is_missing { ErrorKind::Invalid } else { ErrorKind::Unavailable };
        let error = Error::new(kind, text.to_owned());
        return error.with_fate(Fate::NotExecuted).for_all_names();
    }
    let classified = reply::classify(text);
    if classified.fate() == Fate::NotExecuted || classified.kind() != ErrorKind::Unavailable {
        return classified;
    }
    // Whatever fred reports, the server may have run the command.
    let (kind, message) = match error.kind() {
        Kind::IO => io_message(text),
        kind if tls::is_failure(kind) => io_message(text),
        Kind::Auth => (ErrorKind::Denied, WRONG_USER),
        Kind::Timeout => (ErrorKind::Unavailable, "the server did not answer in time"),
        Kind::Canceled => (ErrorKind::Unavailable, "the connection was closed"),
        Kind::Protocol | Kind::Parse => (
            ErrorKind::Unavailable,
            "the server's reply cannot be read; is it Redis? Does it use TLS as the URL says?",
        ),
        _ if LOST.iter().any(|lost| text.starts_with(lost)) => {
            (ErrorKind::Unavailable, "the connection was lost before the server answered")
        }
        _ => return classified,
    };
    // The text of fred is for debugging, so it is only in the source.
    let source = Failure::new(error.kind().clone(), reply::without_arguments(text).to_owned());
    Error::new(kind, message).with_fate(Fate::Unknown).with_source(source)
}

/// Classifies a failure to make the first connection, `with_tls` or without.
pub(super) fn classify_connect(error: &Failure, with_tls: bool) -> Error {
    const CLOSED: [&str; 3] = ["UnexpectedEof", "ConnectionReset", "BrokenPipe"];
    let classified = classify(error);
    // Such words of a provider are about another connection.
    let is_providers = error.details().starts_with(provider::FAILED);
    if is_providers || !CLOSED.iter().any(|words| error.details().contains(words)) {
        return classified;
    }
    let message = if with_tls {
        // With TLS 1.3 the refusal may come behind the first request, which then fails before the refusal is read.
        "the server closed the connection before it answered; if it asks for a client certificate, give one that it trusts \
         to tls_identity"
    } else {
        "the server closed the connection before it answered; if it wants TLS on this port, write rediss:// in the URL"
    };
    classified.with_message(message.to_owned())
}

/// The error of a first connection that was not there in time.
pub(super) fn not_connected_in_time(with_tls: bool) -> Error {
    let message = if with_tls {
        "the server did not answer in time; is it up, and does it speak TLS on this port? Without TLS, write redis:// in \
         the URL"
    } else {
        "the server did not answer in time; is it up, and the port right?"
    };
    Error::new(ErrorKind::Unavailable, message)
}

/// Words of rustls and of OpenSSL about a handshake that has failed.
const HANDSHAKE: [&str; 9] = [
    "InvalidCertificate",
    "certificate verify failed",
    "AlertReceived",
    " alert ",
    "InvalidMessage",
    "PeerIncompatible",
    "PeerMisbehaved",
    "wrong version number",
    "SSL routines",
];

/// Returns what has failed, for the log.
pub(super) fn step(error: &Failure) -> Step {
    let text = error.details();
    let of_files = text.starts_with(tls::FAILED) || text.starts_with(tls::MISSING);
    let of_handshake = || HANDSHAKE.iter().any(|words| text.contains(words));
    if of_files || tls::is_failure(error.kind()) || (*error.kind() == Kind::IO && of_handshake()) {
        Step::Tls
    } else {
        Step::Connection
    }
}

const CONNECTION_FAILED: &str = "the connection to the server failed";

/// Explains a failure of a connection by its text: the words of rustls, of OpenSSL, of the system, or of the resolver.
///
/// A certificate that is not trusted is no outage, so it is reported at once. A manager that runs goes on trying to connect
/// all the same, and recovers when the certificate is replaced.
fn io_message(text: &str) -> (ErrorKind, &'static str) {
    use ErrorKind::{Denied, Invalid, Unavailable};
    let table: [(&[&str], ErrorKind, &str); 9] = [
        (
            &["ConnectionRefused"],
            Unavailable,
            "connection refused: nothing is listening at the server's address; start the server, or correct the port",
        ),
        (
            &["failed to lookup address"],
            Unavailable,
            "the name of the host cannot be resolved; check its spelling, and the DNS of this machine",
        ),
        (
            &["NotValidForName", "hostname mismatch", "IP address mismatch"],
            Denied,
            "the server's certificate is for other host names; connect by a name that it has, or issue one for this name",
        ),
        (
            &["(Expired", "certificate has expired"],
            Denied,
            "the server's certificate has expired; renew it, or correct the clock of this machine",
        ),
        (
            &["(NotValidYet", "certificate is not yet valid"],
            Denied,
            "the server's certificate is not valid yet; correct the clock of this machine, or the certificate",
        ),
        (
            &["InvalidCertificate", "certificate verify failed"],
            Denied,
            "the server's certificate is not trusted; give the CA that has signed it to tls_ca",
        ),
        (
            &["AlertReceived", " alert "],
            Denied,
            "the server refuses this client by TLS; if it wants a certificate, give one that it trusts to tls_identity",
        ),
        (
            &["InvalidContentType", "wrong version number"],
            Invalid,
            "the server does not speak TLS on this port; write redis:// in the URL, or correct the port",
        ),
        (&["NotFound"], Unavailable, "there is no such socket"),
    ];
    table
        .into_iter()
        .find(|(words, ..)| words.iter().any(|words| text.contains(words)))
        .map_or((Unavailable, CONNECTION_FAILED), |(_, kind, message)| (kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fred::error::{Error as FredError, ErrorKind as Kind};
    use std::error::Error as _;

    fn sort(kind: Kind, text: &str) -> Error {
        classify(&FredError::new(kind, text.to_owned()))
    }

    #[test]
    fn servers_words_come_first() {
        for kind in [Kind::Unknown, Kind::IO, Kind::Timeout, Kind::Auth] {
            let error = sort(kind.clone(), "READONLY You can't write against a read only replica.");
            assert_eq!(error.kind(), ErrorKind::Rejected, "{kind:?}");
            // A refusal inside a script has no word of its own, and may come after a write.
            let error = sort(kind.clone(), "ERR The user executing the script can't run this");
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Denied, Fate::Unknown));
            let error = sort(kind, "LOADING Redis is loading the dataset in memory");
            assert_eq!((error.kind(), error.fate()), (ErrorKind::Unavailable, Fate::NotExecuted));
        }
    }

    #[test]
    fn error_of_the_client_comes_next_and_its_fate_is_unknown() {
        use ErrorKind::{Denied, Invalid, Unavailable};
        for (kind, text, sorted, fate, says) in [
            (Kind::Auth, "no", Denied, Fate::Unknown, "user or password"),
            (Kind::Timeout, "", Unavailable, Fate::Unknown, "in time"),
            (
                Kind::IO,
                "Broken pipe",
                Unavailable,
                Fate::Unknown,
                "connection to the server failed",
            ),
            (Kind::IO, "ConnectionRefused", Unavailable, Fate::Unknown, "nothing is listening"),
            (Kind::IO, "NotFound", Unavailable, Fate::Unknown, "no such socket"),
            (Kind::IO, "InvalidCertificate(Expired)", Denied, Fate::Unknown, "has expired"),
            (Kind::IO, "InvalidCertificate(NotValidYet)", Denied, Fate::Unknown, "not valid yet"),
            (
                Kind::IO,
                "InvalidCertificate(NotValidForNameContext { expected: .. })",
                Denied,
                Fate::Unknown,
                "other host names",
            ),
            (Kind::IO, "InvalidCertificate(UnknownIssuer)", Denied, Fate::Unknown, "tls_ca"),
            #[cfg(any(feature = "rustls", feature = "rustls-aws-lc", feature = "native-tls"))]
            (
                Kind::Tls,
                "AlertReceived(CertificateRequired)",
                Denied,
                Fate::Unknown,
                "tls_identity",
            ),
            (
                Kind::IO,
                "InvalidMessage(InvalidContentType)",
                Invalid,
                Fate::Unknown,
                "does not speak TLS",
            ),
            (
                Kind::IO,
                "reason: \"certificate verify failed\", error: \"hostname mismatch\"",
                Denied,
                Fate::Unknown,
                "other host names",
            ),
            (
                Kind::IO,
                "reason: \"certificate verify failed\", error: \"unable to get local issuer certificate\"",
                Denied,
                Fate::Unknown,
                "tls_ca",
            ),
            (
                Kind::IO,
                "reason: \"tlsv13 alert certificate required\"",
                Denied,
                Fate::Unknown,
                "tls_identity",
            ),
            (Kind::Canceled, "", Unavailable, Fate::Unknown, "was closed"),
            (
                Kind::Unknown,
                "no certificates for TLS: the file a",
                Unavailable,
                Fate::NotExecuted,
                "the file a",
            ),
            (
                Kind::Unknown,
                "no such file for TLS: the file a",
                Invalid,
                Fate::NotExecuted,
                "the file a",
            ),
            (Kind::Backpressure, "", Unavailable, Fate::Unknown, "an error"),
            (Kind::Protocol, "", Unavailable, Fate::Unknown, "is it Redis?"),
            (Kind::Parse, "", Unavailable, Fate::Unknown, "is it Redis?"),
            (Kind::Unknown, "what?", Unavailable, Fate::Unknown, "(what?)"),
            (
                Kind::Unknown,
                "Too many failed write attempts.",
                Unavailable,
                Fate::Unknown,
                "connection was lost",
            ),
            (
                Kind::Unknown,
                "Failed to route command.",
                Unavailable,
                Fate::Unknown,
                "connection was lost",
            ),
            (Kind::Routing, NOT_CONNECTED, Unavailable, Fate::NotExecuted, "was not sent"),
        ] {
            let error = sort(kind.clone(), text);
            assert_eq!((error.kind(), error.fate()), (sorted, fate), "{kind:?} {text}");
            assert!(error.to_string().contains(says), "{kind:?}: {error}");
        }
    }

    #[test]
    fn failure_to_connect_says_why_there_is_no_connection() {
        use ErrorKind::{Denied, Invalid, Unavailable};
        let words = "WRONGPASS invalid username-password pair or user is disabled.";
        for (kind, text, sorted, says) in [
            (Kind::Auth, words, Denied, "(WRONGPASS invalid"),
            (Kind::Unknown, "NOAUTH Authentication required.", Denied, "(NOAUTH "),
            (Kind::Unknown, "ERR DB index is out of range", Invalid, "no database of this number"),
            (Kind::IO, "ConnectionRefused", Unavailable, "nothing is listening"),
            (Kind::IO, "Broken pipe: secret", Unavailable, "the connection to the server failed"),
            (
                Kind::Unknown,
                "the credentials provider failed: NOAUTH",
                Unavailable,
                "sent: the credentials provider failed: NOAUTH",
            ),
        ] {
            let failure = Failure::new(kind, text.to_owned());
            let error = super::classify(&unsent(Some(&failure)));
            assert_eq!((error.kind(), error.fate()), (sorted, Fate::NotExecuted), "{text}");
            assert!(is_unsent(&error) && error.message().contains(says), "{text}: {error}");
            assert!(!error.message().contains("secret"), "{error}");
            assert!(!is_unsent(&super::classify(&failure)), "{text}: it was sent");
        }
        let reset = "the credentials provider failed: ConnectionReset";
        let error = classify_connect(&Failure::new(Kind::Unknown, reset), false);
        assert_eq!(error.message(), reset);
        for (with_tls, says) in [(false, "rediss://"), (true, "tls_identity")] {
            let error = classify_connect(&Failure::new(Kind::IO, "ConnectionReset"), with_tls);
            assert!(error.message().contains(says), "{error}");
        }
        assert!(is_unsent(&super::classify(&unsent(None))));
    }

    #[test]
    fn failure_of_tls_is_none_of_the_connection() {
        for (kind, text, expected) in [
            (Kind::Unknown, "no certificates for TLS: the file a", Step::Tls),
            (Kind::Unknown, "no such file for TLS: the file a", Step::Tls),
            (Kind::IO, "InvalidCertificate(UnknownIssuer)", Step::Tls),
            (Kind::IO, "PeerIncompatible(NoCipherSuitesInCommon)", Step::Tls),
            (Kind::IO, "ConnectionRefused", Step::Connection),
            (Kind::Timeout, "", Step::Connection),
            // The words of a server.
            (Kind::Unknown, "ERR an alert was InvalidMessage", Step::Connection),
        ] {
            assert_eq!(step(&FredError::new(kind.clone(), text)), expected, "{kind:?} {text}");
        }
    }

    #[test]
    fn clients_words_stay_in_the_source_without_the_arguments() {
        let error = sort(Kind::IO, "Broken pipe, with args: secret");
        let source = error.source().map(ToString::to_string).unwrap_or_default();
        assert!(source.contains("Broken pipe") && !source.contains("secret"), "{source}");
        assert!(!error.to_string().contains("Broken pipe"), "{error}");
    }
}
