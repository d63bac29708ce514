//! Where the frames of the Redis protocol end, and what a request says.

/// The length of the first whole frame of RESP2 or RESP3 in `bytes`, if there is one.
pub fn frame_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    // Nothing follows a length of -1, which stands for null.
    let length = || {
        let digits = std::str::from_utf8(&bytes[1..line - 2]).ok()?;
        digits.parse::<usize>().ok()
    };
    let parts = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let end = length().map_or(line, |length| line + length + 2);
            return (end <= bytes.len()).then_some(end);
        }
        b'*' | b'~' | b'>' => length().unwrap_or(0),
        b'%' => 2 * length().unwrap_or(0),
        // Attributes come before the frame that they describe.
        b'|' => 2 * length().unwrap_or(0) + 1,
        _ => 0,
    };
    (0..parts).try_fold(line, |at, _| Some(at + frame_length(&bytes[at..])?))
}

/// The words of a request: an array of bulk strings, or a line as one may type it.
pub fn words(frame: &[u8]) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if frame[0] != b'*' {
        return text(frame).split_whitespace().map(str::to_owned).collect();
    }
    let line = |bytes: &[u8]| bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut words = Vec::new();
    let mut rest = &frame[line(frame)..];
    while let Some(length) = frame_length(rest) {
        words.push(text(&rest[line(rest)..length - 2]));
        rest = &rest[length..];
    }
    words
}
