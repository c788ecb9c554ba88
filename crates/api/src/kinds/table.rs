//! The tables of `kubectl get`: columns, ages and other common cells.

use jiff::Timestamp;
use serde_json::Value;

use super::TableColumn;
use super::json::{get_entries, get_text};

impl TableColumn {
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Self { name, type_: "string", format: "", description, priority: 0 }
    }

    pub const fn integer(name: &'static str, description: &'static str) -> Self {
        Self { name, type_: "integer", format: "", description, priority: 0 }
    }

    /// A column shown only by `-o wide`.
    pub const fn wide(self) -> Self {
        Self { priority: 1, ..self }
    }
}

pub(crate) const NAME_COLUMN: TableColumn = TableColumn {
    name: "Name",
    type_: "string",
    format: "name",
    description: "Name must be unique within a namespace.",
    priority: 0,
};

pub(crate) const AGE_COLUMN: TableColumn =
    TableColumn::text("Age", "How long ago this object was created.");

pub(crate) fn name_cell(object: &Value) -> Value {
    get_text(object, "metadata.name").into()
}

pub(crate) fn age_cell(object: &Value, now: Timestamp) -> Value {
    format_time_since(get_text(object, "metadata.creationTimestamp"), now).into()
}

/// Time since `time`; `<unknown>` if there is none.
pub(crate) fn format_time_since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => format_duration(now.as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// At most two units, and one where the second would not matter.
pub(crate) fn format_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |unit, name, smaller, smaller_name| match seconds % unit / smaller {
        0 => format!("{}{name}", seconds / unit),
        rest => format!("{}{name}{rest}{smaller_name}", seconds / unit),
    };
    match seconds {
        // Clocks may differ slightly.
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(MINUTE, "m", 1, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(HOUR, "h", MINUTE, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => pair(DAY, "d", HOUR, "h"),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => pair(YEAR, "y", DAY, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// `<none>` for an empty cell.
pub(crate) fn format_or_none(cell: &str) -> &str {
    if cell.is_empty() { "<none>" } else { cell }
}

/// The first entries, and the number of the others.
pub(crate) fn format_first(all: &[impl AsRef<str>], most: usize) -> String {
    let shown: Vec<&str> = all.iter().take(most).map(AsRef::as_ref).collect();
    let shown = shown.join(",");
    match all.len().checked_sub(most) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} + {more} more..."),
    }
}

/// `a=1,b=2`, ordered by key.
pub(crate) fn format_labels(object: &Value, path: &str) -> String {
    let pairs: Vec<String> = get_entries(object, path)
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    format_or_none(&pairs.join(",")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_like_kubectls() {
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_400, "3h10m"),
            (28_799, "7h59m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (691_199, "7d23h"),
            (691_200, "8d"),
            (63_071_999, "729d"),
            (63_072_000, "2y"),
            (63_158_400, "2y1d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(format_duration(seconds), expected, "{seconds}");
        }
    }
}
