//! Functions of the job file on times.

use super::{Outcome, text};
use crate::jobspec::duration;
use crate::jobspec::value::Value;
use crate::template::calendar;

const NANOS: i128 = 1_000_000_000;

/// A time as RFC 3339 writes it.
struct Timestamp {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    nanos: i128,
    /// Minutes east of Greenwich.
    offset: i64,
    /// Written with `Z`.
    utc: bool,
}

impl Timestamp {
    fn parse(written: &str) -> Result<Timestamp, String> {
        let wrong = || format!("\"{written}\" is not a time such as 2006-01-02T15:04:05Z");
        let (head, rest) = written.split_at_checked(19).ok_or_else(wrong)?;
        let shape = head.bytes().enumerate().all(|(i, b)| match i {
            4 | 7 => b == b'-',
            10 => b == b'T',
            13 | 16 => b == b':',
            _ => b.is_ascii_digit(),
        });
        if !shape {
            return Err(wrong());
        }
        let part = |from: usize, to: usize| head[from..to].parse::<i64>().map_err(|_| wrong());
        let zone_at = rest.find(['Z', '+', '-']).ok_or_else(wrong)?;
        let (fraction, zone) = rest.split_at(zone_at);
        let nanos = match fraction.strip_prefix('.') {
            Some(digits) if !digits.is_empty() && digits.len() <= 9 && digits.bytes().all(|b| b.is_ascii_digit()) => {
                format!("{digits:0<9}").parse().map_err(|_| wrong())?
            }
            None if fraction.is_empty() => 0,
            _ => return Err(wrong()),
        };
        let offset = match zone.as_bytes() {
            b"Z" => 0,
            [sign, h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(|b| b.is_ascii_digit()) => {
                let digit = |b: &u8| i64::from(b - b'0');
                let minutes = (digit(h1) * 10 + digit(h2)) * 60 + digit(m1) * 10 + digit(m2);
                if *sign == b'-' { -minutes } else { minutes }
            }
            _ => return Err(wrong()),
        };
        let time = Timestamp {
            year: part(0, 4)?,
            month: part(5, 7)?,
            day: part(8, 10)?,
            hour: part(11, 13)?,
            minute: part(14, 16)?,
            second: part(17, 19)?,
            nanos,
            offset,
            utc: zone == "Z",
        };
        let valid = (1..=12).contains(&time.month)
            && (1..=days_in_month(time.year, time.month)).contains(&time.day)
            && time.hour < 24
            && time.minute < 60
            && time.second < 60;
        if valid { Ok(time) } else { Err(wrong()) }
    }

    /// Nanoseconds since 1970, by the clock of its own zone.
    fn local_nanos(&self) -> i128 {
        let days = calendar::days(self.year, self.month, self.day);
        i128::from(((days * 24 + self.hour) * 60 + self.minute) * 60 + self.second) * NANOS + self.nanos
    }

    fn weekday(&self) -> &'static str {
        let days = calendar::days(self.year, self.month, self.day);
        calendar::weekday(days)
    }

    fn zone(&self, colon: &str) -> String {
        let sign = if self.offset < 0 { '-' } else { '+' };
        format!("{sign}{:02}{colon}{:02}", self.offset.abs() / 60, self.offset.abs() % 60)
    }
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

pub(super) fn timeadd(args: &[Value]) -> Outcome {
    let time = Timestamp::parse(&text(args, 0)?)?;
    let span = duration::parse_signed(&text(args, 1)?)?;
    let nanos = time.local_nanos() + i128::from(span);
    let seconds = i64::try_from(nanos.div_euclid(NANOS)).map_err(|_| "the time is out of range")?;
    let (year, month, day) = calendar::date(seconds.div_euclid(86_400));
    if !(0..=9999).contains(&year) {
        return Err("the time is out of range".to_owned());
    }
    let of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let zone = if time.utc { "Z".to_owned() } else { time.zone(":") };
    Ok(Value::String(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{zone}")))
}

/// Runs of letters stand for parts of the time, text in single quotes for itself.
pub(super) fn formatdate(args: &[Value]) -> Outcome {
    let (pattern, time) = (text(args, 0)?, Timestamp::parse(&text(args, 1)?)?);
    let mut out = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        if c == '\'' {
            loop {
                match chars.next() {
                    Some('\'') if chars.next_if_eq(&'\'').is_some() => out.push('\''),
                    Some('\'') => break,
                    Some(other) => out.push(other),
                    None => return Err("a single quote is not closed".to_owned()),
                }
            }
        } else if c.is_ascii_alphabetic() {
            let mut run = String::from(c);
            while let Some(next) = chars.next_if_eq(&c) {
                run.push(next);
            }
            out.push_str(&field(&time, &run)?);
        } else {
            out.push(c);
        }
    }
    Ok(Value::String(out))
}

fn field(time: &Timestamp, run: &str) -> Result<String, String> {
    let month = usize::try_from(time.month - 1).ok().and_then(|m| calendar::MONTHS.get(m)).copied().unwrap_or_default();
    let hour12 = if time.hour % 12 == 0 { 12 } else { time.hour % 12 };
    Ok(match run {
        "YYYY" => format!("{:04}", time.year),
        "YY" => format!("{:02}", time.year % 100),
        "MMMM" => month.to_owned(),
        "MMM" => month[..3].to_owned(),
        "MM" => format!("{:02}", time.month),
        "M" => time.month.to_string(),
        "DD" => format!("{:02}", time.day),
        "D" => time.day.to_string(),
        "EEEE" => time.weekday().to_owned(),
        "EEE" => time.weekday()[..3].to_owned(),
        "hh" => format!("{:02}", time.hour),
        "h" => time.hour.to_string(),
        "HH" => format!("{hour12:02}"),
        "H" => hour12.to_string(),
        "AA" => if time.hour < 12 { "AM" } else { "PM" }.to_owned(),
        "aa" => if time.hour < 12 { "am" } else { "pm" }.to_owned(),
        "mm" => format!("{:02}", time.minute),
        "m" => time.minute.to_string(),
        "ss" => format!("{:02}", time.second),
        "s" => time.second.to_string(),
        "ZZZ" if time.offset == 0 => "UTC".to_owned(),
        "Z" if time.offset == 0 => "Z".to_owned(),
        "ZZZZZ" | "Z" => time.zone(":"),
        "ZZZZ" | "ZZZ" => time.zone(""),
        other => return Err(format!("\"{other}\" stands for no part of a time; put text in single quotes")),
    })
}
