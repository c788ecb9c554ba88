//! Passes listening sockets to another process, over a Unix socket.
//!
//! Both processes may accept connections from the same sockets for a while, so an upgrade refuses and resets none.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockType, getsockopt, recvmsg, sendmsg, sockopt,
};
use serde::{Deserialize, Serialize};

/// Sockets in one message; the kernel accepts up to 253.
const MAX_SOCKETS_PER_MESSAGE: usize = 200;
/// More than the workers of any machine need.
const MAX_PASSED_SOCKETS: usize = 4096;
/// The text that comes with sockets.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Precedes each group of sockets.
#[derive(Debug, Serialize, Deserialize)]
struct HandoverHeader {
    sockets: usize,
    /// Octets of text that follow the last group.
    text: usize,
    is_last: bool,
}

/// Sends sockets, and a text for the other process.
pub(crate) fn send_sockets(
    stream: &UnixStream,
    sockets: &[&TcpListener],
    text: &str,
) -> Result<()> {
    let fds: Vec<RawFd> = sockets.iter().map(|socket| socket.as_raw_fd()).collect();
    let mut chunks: Vec<&[RawFd]> = fds.chunks(MAX_SOCKETS_PER_MESSAGE).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let last = chunks.len() - 1;
    for (index, chunk) in chunks.into_iter().enumerate() {
        let header =
            HandoverHeader { sockets: chunk.len(), text: text.len(), is_last: index == last };
        let mut line = serde_json::to_string(&header)?;
        line.push('\n');
        send_with(stream, line.as_bytes(), chunk).context("sockets not sent")?;
    }
    io::Write::write_all(&mut &*stream, text.as_bytes()).context("sockets not sent")
}

fn send_with(stream: &UnixStream, mut bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(fds)];
    let mut control: &[ControlMessage] = if fds.is_empty() { &[] } else { &rights };
    while !bytes.is_empty() {
        let parts = [IoSlice::new(bytes)];
        match sendmsg::<()>(stream.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None) {
            Ok(sent) => {
                bytes = &bytes[sent..];
                control = &[];
            }
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Receives what [`send_sockets`] sent. Other files than listening TCP sockets are refused.
pub(crate) fn receive_sockets(stream: &UnixStream) -> Result<(Vec<TcpListener>, String)> {
    let mut sockets = Vec::new();
    let header = loop {
        let (line, received) = receive_line(stream).context("no sockets received")?;
        let header: HandoverHeader =
            serde_json::from_str(&line).context("not the message of a proxy")?;
        ensure!(
            received.len() == header.sockets,
            "{} of {} sockets received; is the limit of open files too low?",
            received.len(),
            header.sockets
        );
        for fd in received {
            sockets.push(listener_of_fd(fd)?);
        }
        ensure!(sockets.len() <= MAX_PASSED_SOCKETS, "more than {MAX_PASSED_SOCKETS} sockets");
        if header.is_last {
            break header;
        }
    };
    ensure!(header.text <= MAX_TEXT_BYTES, "more than {MAX_TEXT_BYTES} octets of text");
    let mut text = String::new();
    let read = Read::take(stream, header.text as u64).read_to_string(&mut text);
    ensure!(read.context("no text received")? == header.text, "the text is cut off");
    Ok((sockets, text))
}

/// One line, and the files that came with it. Byte by byte, because what follows belongs to others.
fn receive_line(stream: &UnixStream) -> Result<(String, Vec<OwnedFd>)> {
    let mut line = Vec::new();
    let mut files = Vec::new();
    let mut space = cmsg_space!([RawFd; 253]);
    loop {
        let mut byte = [0];
        let mut parts = [IoSliceMut::new(&mut byte)];
        let fd = stream.as_raw_fd();
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = match recvmsg::<()>(fd, &mut parts, Some(&mut space), flags) {
            Err(Errno::EINTR) => continue,
            message => message?,
        };
        let received = message.bytes;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                // SAFETY: the kernel has just opened these for this process, and nothing else has their numbers.
                files.extend(fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
            }
        }
        match (received, byte[0]) {
            (0, _) => anyhow::bail!("the other process closed the connection"),
            (_, b'\n') => break,
            (_, byte) => line.push(byte),
        }
        ensure!(line.len() <= 1024 && files.len() <= 253, "not the message of a proxy");
    }
    Ok((String::from_utf8(line)?, files))
}

/// A listening TCP socket; an error for other files.
pub(crate) fn listener_of_fd(fd: OwnedFd) -> Result<TcpListener> {
    let kind = getsockopt(&fd, sockopt::SockType).context("a passed file is not a socket")?;
    let is_listening = getsockopt(&fd, sockopt::AcceptConn)?;
    ensure!(kind == SockType::Stream && is_listening, "a passed socket does not listen");
    let listener = TcpListener::from(fd);
    listener.local_addr().context("a passed socket is not one of TCP")?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{SocketAddr, TcpStream};
    use std::thread;

    use super::*;

    fn bound() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn sockets_arrive_with_the_connections_in_their_queues() {
        let (near, far) = UnixStream::pair().unwrap();
        let sockets: Vec<TcpListener> = (0..MAX_SOCKETS_PER_MESSAGE + 3).map(|_| bound()).collect();
        let addresses: Vec<SocketAddr> = sockets.iter().map(|s| s.local_addr().unwrap()).collect();
        let _queued = TcpStream::connect(addresses[0]).unwrap();
        let text = "ä".repeat(100_000);
        let sent = text.clone();
        let sender = thread::spawn(move || {
            let sockets: Vec<&TcpListener> = sockets.iter().collect();
            send_sockets(&near, &sockets, &sent).unwrap();
        });
        let (received, also) = receive_sockets(&far).unwrap();
        sender.join().unwrap();
        let found: Vec<SocketAddr> = received.iter().map(|s| s.local_addr().unwrap()).collect();
        assert_eq!((found, also), (addresses, text));
        received[0].accept().unwrap();
    }

    #[test]
    fn no_sockets_are_a_message_too() {
        let (near, far) = UnixStream::pair().unwrap();
        send_sockets(&near, &[], "text").unwrap();
        assert_eq!(receive_sockets(&far).unwrap().1, "text");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let long = "a".repeat(10_000);
        for text in ["", "\n", "{}\n", "hello\n", &long, r#"{"sockets":1,"text":0,"is_last":true}"#]
        {
            let (mut near, far) = UnixStream::pair().unwrap();
            near.write_all(text.as_bytes()).unwrap();
            // Without the newline that the last one needs, too.
            drop(near);
            assert!(receive_sockets(&far).is_err(), "{text}");
        }
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"{\"sockets\":2,\"text\":0,\"is_last\":true}\n").unwrap();
        let error = receive_sockets(&far).unwrap_err().to_string();
        assert!(error.contains("0 of 2 sockets"), "{error}");
    }

    #[test]
    fn other_files_than_listening_sockets_are_refused() {
        let connected = TcpStream::connect(bound().local_addr().unwrap()).unwrap();
        assert!(listener_of_fd(connected.into()).is_err());
        assert!(listener_of_fd(UnixStream::pair().unwrap().0.into()).is_err());
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(listener_of_fd(file.into()).is_err());
        assert!(listener_of_fd(bound().into()).is_ok());
    }
}
