//! The limit of file descriptors. Each health check node port takes one for each address of the
//! node, and more for its clients. The usual limit of 1,024 is for programs that call select(),
//! which Millrace does not.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allows as many as the system allows this process to have.
pub fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "limit of file descriptors not raised");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_raised_as_far_as_it_can_be() {
        let limits = || getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        let (_, hard) = limits();
        // Not much lower: other tests of this process open files.
        setrlimit(Resource::RLIMIT_NOFILE, hard - 1, hard).expect("a lower limit");
        raise_file_limit();
        assert_eq!(limits(), (hard, hard));
    }
}
