//! The figures that are measured for each contender.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ComparisonFigure {
    Connections,
    ConnectionTime,
    ConnectionSoftirq,
    ConnectHalf,
    ConnectMost,
    KeptHalf,
    KeptMost,
    KeptTime,
    Stream,
    DatagramHalf,
    DatagramMost,
    Frames,
}

impl ComparisonFigure {
    pub const ALL: [Self; 12] = [
        Self::Connections,
        Self::ConnectionTime,
        Self::ConnectionSoftirq,
        Self::ConnectHalf,
        Self::ConnectMost,
        Self::KeptHalf,
        Self::KeptMost,
        Self::KeptTime,
        Self::Stream,
        Self::DatagramHalf,
        Self::DatagramMost,
        Self::Frames,
    ];

    /// The key in the JSON; stable.
    pub fn key(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::ConnectionTime => "connection_processor_time",
            Self::ConnectionSoftirq => "connection_softirq_time",
            Self::ConnectHalf => "connect_request_p50",
            Self::ConnectMost => "connect_request_p99",
            Self::KeptHalf => "kept_request_p50",
            Self::KeptMost => "kept_request_p99",
            Self::KeptTime => "kept_request_processor_time",
            Self::Stream => "stream",
            Self::DatagramHalf => "first_datagram_p50",
            Self::DatagramMost => "first_datagram_p99",
            Self::Frames => "packets",
        }
    }

    pub fn unit(self) -> &'static str {
        match self {
            Self::Connections => "connections/s",
            Self::Stream => "Gbit/s",
            Self::Frames => "million/s",
            _ => "µs",
        }
    }

    /// The title of a panel of the plot.
    pub fn title(self) -> &'static str {
        match self {
            Self::Connections => "New connections a second (more is better)",
            Self::ConnectionTime => "Processor time a new connection, µs (less is better)",
            Self::ConnectionSoftirq => "… of it in softirqs, µs",
            Self::ConnectHalf => "Connect and ask, median, µs (less is better)",
            Self::ConnectMost => "Connect and ask, 99 %, µs",
            Self::KeptHalf => "Ask on a kept connection, median, µs (less is better)",
            Self::KeptMost => "Ask on a kept connection, 99 %, µs",
            Self::KeptTime => "Processor time a kept request, µs",
            Self::Stream => "Bulk, one connection, Gbit/s (more is better)",
            Self::DatagramHalf => "First datagram of a flow and its answer, µs (less is better)",
            Self::DatagramMost => "First datagram, 99 %, µs",
            Self::Frames => "Packets a second on one processor, millions (more is better)",
        }
    }

    /// The heading of a column of the table.
    pub fn heading(self) -> &'static str {
        match self {
            Self::Connections => "new conn/s",
            Self::ConnectionTime => "CPU µs/conn",
            Self::ConnectionSoftirq => "softirq µs/conn",
            Self::ConnectHalf => "connect+ask p50 µs",
            Self::ConnectMost => "p99 µs",
            Self::KeptHalf => "kept ask p50 µs",
            Self::KeptMost => "p99 µs",
            Self::KeptTime => "CPU µs/ask",
            Self::Stream => "bulk Gbit/s",
            Self::DatagramHalf => "UDP first p50 µs",
            Self::DatagramMost => "p99 µs",
            Self::Frames => "Mpackets/s",
        }
    }
}
