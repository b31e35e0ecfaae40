//! The fields of a cron expression, read as Nomad reads them and written out for croner, whose own reading differs: a range of
//! weekdays that ends on Sunday ends on Saturday, one from Sunday to Sunday has all days, and names may be whole words.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::spec::collections::BTreeSet;

/// Names and the seven fields that they stand for.
const NAMED: [(&str, &str); 7] = [
    ("@annually", "0 0 0 1 1 * *"),
    ("@yearly", "0 0 0 1 1 * *"),
    ("@monthly", "0 0 0 1 * * *"),
    ("@weekly", "0 0 0 * * 0 *"),
    ("@daily", "0 0 0 * * * *"),
    ("@midnight", "0 0 0 * * * *"),
    ("@hourly", "0 0 * * * * *"),
];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] = ["sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"];

/// What may stand in a field.
struct Field {
    name: &'static str,
    first: u16,
    last: u16,
    /// The greatest step.
    step: u16,
    /// Of the values from `first` on.
    names: &'static [&'static str],
}

const fn field(name: &'static str, first: u16, last: u16, step: u16, names: &'static [&'static str]) -> Field {
    Field { name, first, last, step, names }
}

const FIELDS: [Field; 7] = [
    field("second", 0, 59, 59, &[]),
    field("minute", 0, 59, 59, &[]),
    field("hour", 0, 23, 23, &[]),
    field("day of the month", 1, 31, 31, &[]),
    field("month", 1, 12, 12, &MONTHS),
    field("day of the week", 0, 6, 6, &WEEKDAYS),
    field("year", 1970, 2099, 129, &[]),
];
const DAY_OF_MONTH: &str = FIELDS[3].name;
const DAY_OF_WEEK: &str = FIELDS[5].name;
const YEAR: &str = FIELDS[6].name;

/// An expression of five fields, of six (with the year) or of seven (with seconds too), or a name such as `@daily`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(spec: &str) -> Result<Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Required).build();
    parser.parse(&explicit(spec)?).map_err(|e| e.to_string())
}

/// The seven fields with each value that is met.
fn explicit(spec: &str) -> Result<String, String> {
    let named = NAMED.iter().find(|(name, _)| spec.trim() == *name).map(|(_, fields)| *fields);
    let words: Vec<&str> = named.unwrap_or(spec).split_whitespace().collect();
    let words = match *words.as_slice() {
        [minute, hour, day, month, weekday] => ["0", minute, hour, day, month, weekday, "*"],
        [minute, hour, day, month, weekday, year] => ["0", minute, hour, day, month, weekday, year],
        [second, minute, hour, day, month, weekday, year] => [second, minute, hour, day, month, weekday, year],
        _ => {
            return Err(format!("it has {} fields, and not 5, 6 (with the year) or 7 (with seconds too)", words.len()));
        }
    };
    let fields = FIELDS
        .iter()
        .zip(words)
        .map(|(field, word)| field.explicit(word).map_err(|why| format!("{}: {why}", field.name)));
    Ok(fields.collect::<Result<Vec<_>, _>>()?.join(" "))
}

impl Field {
    fn explicit(&self, text: &str) -> Result<String, String> {
        let (mut values, mut special, mut is_any) = (BTreeSet::new(), Vec::new(), false);
        for item in text.split(',').filter(|item| !item.is_empty()) {
            if matches!(item, "*" | "?") {
                is_any = true;
            } else if let Some(day) = self.special(item)? {
                special.push(day);
            } else {
                self.add(item, &mut values)?;
            }
        }
        match self.name {
            // croner's years go on after the last one.
            YEAR if is_any => values.extend(self.first..=self.last),
            _ if is_any => return Ok("*".to_owned()),
            _ => {}
        }
        let all: Vec<String> = values.iter().map(u16::to_string).chain(special).collect();
        if all.is_empty() { Err("it is empty".to_owned()) } else { Ok(all.join(",")) }
    }

    /// A value, a range, `*`, or one of these with a step.
    fn add(&self, item: &str, values: &mut BTreeSet<u16>) -> Result<(), String> {
        let (range, step) = match item.split_once('/') {
            Some((range, step)) => (range, Some(self.step(step)?)),
            None => (item, None),
        };
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (self.first, self.last),
            Some((first, last)) => match (self.value(first)?, self.value(last)?) {
                (first, 0) if self.name == DAY_OF_WEEK => (first, self.last),
                ends => ends,
            },
            None if step.is_some() => (self.value(range)?, self.last),
            None => {
                let value = self.value(range)?;
                (value, value)
            }
        };
        if first > last {
            return Err(format!("the range {range:?} goes backwards; write two, with a comma between them"));
        }
        values.extend((first..=last).step_by(step.unwrap_or(1).into()));
        Ok(())
    }

    fn step(&self, text: &str) -> Result<u16, String> {
        let step = number(text, 4).filter(|step| (1..=self.step).contains(step));
        step.ok_or_else(|| format!("the step {text:?} is not a number from 1 to {}", self.step))
    }

    fn value(&self, text: &str) -> Result<u16, String> {
        let is_named = |name: &&str| text.eq_ignore_ascii_case(name) || text.eq_ignore_ascii_case(&name[..3]);
        if let Some(position) = (self.first..).zip(self.names).find_map(|(n, name)| is_named(name).then_some(n)) {
            return Ok(position);
        }
        // Seven is Sunday as well.
        let last = if self.name == DAY_OF_WEEK { 7 } else { self.last };
        let value = number(text, last.to_string().len()).filter(|value| (self.first..=last).contains(value));
        let value = value.ok_or_else(|| {
            let names = match self.names {
                [name, ..] => format!(", nor a name such as {} or {name}", &name[..3]),
                [] => String::new(),
            };
            format!("{text:?} is not a number from {} to {last}{names}", self.first)
        })?;
        Ok(if self.name == DAY_OF_WEEK { value % 7 } else { value })
    }

    /// The last day of a month, a working day, the last or another one of a month's weekdays.
    fn special(&self, item: &str) -> Result<Option<String>, String> {
        let upper = item.to_ascii_uppercase();
        match self.name {
            DAY_OF_MONTH if matches!(upper.as_str(), "L" | "LW") => Ok(Some(upper)),
            DAY_OF_MONTH => upper.strip_suffix('W').map(|day| Ok(format!("{}W", self.value(day)?))).transpose(),
            DAY_OF_WEEK if upper.contains('#') => {
                let (day, nth) = upper.split_once('#').unwrap_or_default();
                let nth = number(nth, 1).filter(|nth| (1..=5).contains(nth));
                let nth = nth.ok_or_else(|| format!("{item:?}: after # comes a number from 1 to 5"))?;
                Ok(Some(format!("{}#{nth}", self.value(day)?)))
            }
            DAY_OF_WEEK if upper == "L" => Err("\"L\" is of no day; write 5L for the last Friday".to_owned()),
            DAY_OF_WEEK => upper.strip_suffix('L').map(|day| Ok(format!("{}L", self.value(day)?))).transpose(),
            _ => Ok(None),
        }
    }
}

/// A number of so many digits at most.
fn number(text: &str, digits: usize) -> Option<u16> {
    let is_number = (1..=digits).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_out_is_what_nomad_reads() {
        for (spec, wanted) in [
            ("* * * * *", "0 * * * * * YEARS"),
            ("5-7,5 ? 1,L,lw,01w jan,11-DEC fri-SUN", "0 5,6,7 * 1,L,LW,1W 1,11,12 5,6 YEARS"),
            ("0 0 * * 7,1L,sun#2", "0 0 0 * * 0,1L,0#2 YEARS"),
            ("0 0 * * 7/2", "0 0 0 * * 0,2,4,6 YEARS"),
            ("0 0 * * 0-0", "0 0 0 * * 0,1,2,3,4,5,6 YEARS"),
            ("0 0 * * 2-0 2024,2026", "0 0 0 * * 2,3,4,5,6 2024,2026"),
            ("*/20 59,58 23 1 march Sunday */64", "0,20,40 59,58 23 1 3 0 1970,2034,2098"),
        ] {
            let years = (1970..=2099).map(|year| year.to_string()).collect::<Vec<_>>().join(",");
            let wanted = wanted.replace("YEARS", &years).replace("59,58", "58,59");
            assert_eq!(explicit(spec), Ok(wanted), "{spec}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_of_its_field() {
        for (spec, why) in [
            ("60 * * * *", "minute: \"60\" is not a number from 0 to 59"),
            ("001 * * * *", "minute: \"001\" is not a number from 0 to 59"),
            ("* * 0 * *", "day of the month: \"0\" is not a number from 1 to 31"),
            ("* * * sept *", "month: \"sept\" is not a number from 1 to 12, nor a name such as jan or january"),
            ("* * * * 01", "day of the week: \"01\" is not a number from 0 to 7, nor a name such as sun or sunday"),
            ("* 22-2 * * *", "hour: the range \"22-2\" goes backwards; write two, with a comma between them"),
            ("* */24 * * *", "hour: the step \"24\" is not a number from 1 to 23"),
            ("*/0 * * * *", "minute: the step \"0\" is not a number from 1 to 59"),
            ("* * * * L", "day of the week: \"L\" is of no day; write 5L for the last Friday"),
            ("* * * * 1#6", "day of the week: \"1#6\": after # comes a number from 1 to 5"),
            (", * * * *", "minute: it is empty"),
            ("* * * *", "it has 4 fields, and not 5, 6 (with the year) or 7 (with seconds too)"),
        ] {
            assert_eq!(explicit(spec), Err(why.to_owned()), "{spec}");
        }
    }
}
