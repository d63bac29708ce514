//! Decodes the percent-encoding of URLs.

/// Returns the text without its encoding; `None` for what is no percent-encoded UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => 16 * digit(bytes.next()?)? + digit(bytes.next()?)?,
            byte => byte,
        };
        decoded.push(byte);
    }
    String::from_utf8(decoded).ok()
}

fn digit(byte: u8) -> Option<u8> {
    let digit = char::from(byte).to_digit(16)?;
    u8::try_from(digit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_encoded_or_not() {
        for (text, decoded) in [
            ("", Some("")),
            ("/run/my redis", Some("/run/my redis")),
            ("a%20b%c3%B6%25", Some("a bö%")),
            ("%", None),
            ("a%4", None),
            ("%+1", None),
            ("%FF", None),
        ] {
            assert_eq!(decode(text).as_deref(), decoded, "{text}");
        }
    }
}
