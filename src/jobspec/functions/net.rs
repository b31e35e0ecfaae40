//! Functions of the job file on address blocks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Outcome, int, text};
use crate::jobspec::value::Value;

/// An address block as a number.
#[derive(Clone, Copy)]
struct Block {
    address: u128,
    prefix: u32,
    /// 32 or 128.
    bits: u32,
}

impl Block {
    fn parse(written: &str) -> Result<Block, String> {
        let wrong = || format!("\"{written}\" is not an address block such as 10.0.0.0/8");
        let (address, prefix) = written.split_once('/').ok_or_else(wrong)?;
        let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
        let (address, bits) = match address.parse::<IpAddr>().map_err(|_| wrong())? {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
            IpAddr::V6(v6) => (u128::from(v6), 128),
        };
        if prefix > bits {
            return Err(wrong());
        }
        let host = low_bits(bits - prefix);
        Ok(Block { address: address & !host, prefix, bits })
    }

    fn show(self, address: u128) -> String {
        if self.bits == 32 {
            Ipv4Addr::from(u32::try_from(address & low_bits(32)).unwrap_or(0)).to_string()
        } else {
            Ipv6Addr::from(address).to_string()
        }
    }

    fn subnet(self, new_bits: i128, number: u128) -> Result<Block, String> {
        let new_bits = u32::try_from(new_bits).map_err(|_| "the number of new bits must not be negative")?;
        let prefix = self.prefix.checked_add(new_bits).filter(|p| *p <= self.bits);
        let prefix =
            prefix.ok_or_else(|| format!("{new_bits} more bits do not fit after a prefix of {}", self.prefix))?;
        if number > low_bits(new_bits) {
            return Err(format!("{new_bits} bits cannot hold the number {number}"));
        }
        let address = self.address | number.checked_shl(self.bits - prefix).unwrap_or(0);
        Ok(Block { address, prefix, bits: self.bits })
    }

    fn value(self) -> Value {
        Value::String(format!("{}/{}", self.show(self.address), self.prefix))
    }
}

fn low_bits(count: u32) -> u128 {
    if count == 0 { 0 } else { u128::MAX >> (128 - count.min(128)) }
}

/// A negative number counts from the end of the block.
pub(super) fn cidrhost(args: &[Value]) -> Outcome {
    let block = Block::parse(&text(args, 0)?)?;
    let number = int(args, 1)?;
    let room = low_bits(block.bits - block.prefix);
    let host = if number < 0 {
        room.checked_sub(number.unsigned_abs() - 1)
    } else {
        Some(number.unsigned_abs()).filter(|n| *n <= room)
    };
    let host = host.ok_or_else(|| format!("the block has no host number {number}"))?;
    Ok(Value::String(block.show(block.address | host)))
}

pub(super) fn cidrnetmask(args: &[Value]) -> Outcome {
    let block = Block::parse(&text(args, 0)?)?;
    if block.bits != 32 {
        return Err("only IPv4 blocks have a netmask".to_owned());
    }
    Ok(Value::String(block.show(!low_bits(block.bits - block.prefix))))
}

pub(super) fn cidrsubnet(args: &[Value]) -> Outcome {
    let block = Block::parse(&text(args, 0)?)?;
    let number = u128::try_from(int(args, 2)?).map_err(|_| "the subnet's number must not be negative")?;
    Ok(block.subnet(int(args, 1)?, number)?.value())
}

/// Consecutive blocks, each as close to the one before as its size allows.
pub(super) fn cidrsubnets(args: &[Value]) -> Outcome {
    let block = Block::parse(&text(args, 0)?)?;
    let mut next = block.address;
    let mut full = false;
    let mut out = Vec::new();
    for i in 1..args.len() {
        let sized = block.subnet(int(args, i)?, 0)?;
        let size_less_one = low_bits(block.bits - sized.prefix);
        let aligned = if next & size_less_one == 0 { Some(next) } else { (next | size_less_one).checked_add(1) };
        let last = aligned.and_then(|a| a.checked_add(size_less_one));
        let inside = last.filter(|l| !full && *l <= (block.address | low_bits(block.bits - block.prefix)));
        let (Some(address), Some(last)) = (aligned, inside) else {
            return Err(format!("the block has no room for subnet {i}"));
        };
        out.push(Block { address, ..sized }.value());
        full = last == u128::MAX;
        next = last.wrapping_add(1);
    }
    Ok(Value::List(out))
}
