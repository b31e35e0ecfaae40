//! What the name servers say: a stub resolver (RFC 1034 and 1035) that asks for addresses and nothing else, by UDP, and by TCP
//! where an answer does not fit. What it takes for an answer comes from the server that it asked, has the random number of the
//! question, and repeats it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::message::{self, Kind, Reply};

/// Longest answer by UDP of a server that was not told of a larger size.
const DATAGRAM: usize = 512;
/// As many as the C library has, however many stand in the file.
const MOST_SERVERS: usize = 3;
const MOST_SEARCHED: usize = 6;
const MOST_ATTEMPTS: u32 = 5;
const LONGEST: Duration = Duration::from_secs(30);

/// Whom to ask, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Servers {
    /// One after the other.
    pub(super) addresses: Vec<SocketAddr>,
    /// What is tried behind a name.
    pub(super) search: Vec<String>,
    /// A name with as many dots is tried as it stands first.
    pub(super) ndots: usize,
    /// Until the next server is asked.
    pub(super) timeout: Duration,
    /// How often all of them are asked.
    pub(super) attempts: u32,
    /// Never by UDP.
    pub(super) tcp: bool,
}

/// What one name has.
enum Found {
    Addresses(Vec<IpAddr>),
    /// There is no such name, or it has no address.
    Nothing,
}

/// Nobody says what a name has.
struct Unknown {
    why: String,
    /// A server answers, and does not know either.
    answered: bool,
}

impl Servers {
    /// Reads a `resolv.conf`. Without a server in it the one on this machine is asked, as `resolver(5)` says.
    ///
    /// # Errors
    /// Servers, none of which can be read.
    pub(super) fn parse(text: &[u8]) -> io::Result<Servers> {
        let (read, wrong) = resolv_conf::Config::parse_with_errors(text);
        let names_one =
            text.split(|byte| *byte == b'\n').any(|line| line.trim_ascii_start().starts_with(b"nameserver"));
        if read.nameservers.is_empty() && names_one {
            let why = wrong.first().map_or_else(|| "no name server".to_owned(), ToString::to_string);
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("/etc/resolv.conf: {why}")));
        }
        let mut addresses: Vec<SocketAddr> =
            read.nameservers.iter().take(MOST_SERVERS).map(|server| (IpAddr::from(server), 53).into()).collect();
        if addresses.is_empty() {
            addresses.push((Ipv4Addr::LOCALHOST, 53).into());
        }
        let mut search: Vec<String> = read.get_last_search_or_domain().cloned().collect();
        // The last one is the root, which systemd-resolved writes where there is none.
        search.retain(|domain| !matches!(domain.as_str(), "--" | "."));
        search.truncate(MOST_SEARCHED);
        if search.is_empty() {
            search.extend(read.get_system_domain());
        }
        Ok(Servers {
            addresses,
            search,
            ndots: read.ndots.min(15) as usize,
            timeout: Duration::from_secs(read.timeout.max(1).into()).min(LONGEST),
            attempts: read.attempts.clamp(1, MOST_ATTEMPTS),
            tcp: read.use_vc,
        })
    }

    /// The names that `host` may stand for, in order. A dot at the end says that it stands for itself.
    fn names(&self, host: &str) -> Vec<String> {
        let Some(whole) = host.strip_suffix('.') else {
            let domains = self.search.iter().map(|domain| domain.trim_end_matches('.'));
            let searched = domains.map(|domain| format!("{host}.{domain}"));
            let mut names: Vec<String> = searched.filter(|name| message::is_name(name)).collect();
            let dots = host.matches('.').count();
            names.insert(if dots >= self.ndots { 0 } else { names.len() }, host.to_owned());
            return names;
        };
        vec![whole.to_owned()]
    }

    /// The addresses of a host.
    ///
    /// # Errors
    /// Why there are none, in words.
    pub(super) async fn lookup(&self, host: &str) -> Result<Vec<IpAddr>, String> {
        let mut refused = None;
        for name in self.names(host) {
            match self.both(&name).await {
                Ok(Found::Addresses(addresses)) => return Ok(addresses),
                Ok(Found::Nothing) => {}
                // Of one domain nothing is known; another one may have the name.
                Err(Unknown { why, answered: true }) => refused = Some(why),
                Err(Unknown { why, .. }) => return Err(why),
            }
        }
        Err(refused.unwrap_or_else(|| "there is no such name, or it has no address".to_owned()))
    }

    /// Both kinds of addresses at once. One of them is enough: not every server knows of the other.
    async fn both(&self, name: &str) -> Result<Found, Unknown> {
        let (v4, v6) = tokio::join!(self.ask(name, Kind::A), self.ask(name, Kind::Aaaa));
        match (v4, v6) {
            (Ok(mut all), Ok(more)) => {
                all.extend(more);
                Ok(if all.is_empty() { Found::Nothing } else { Found::Addresses(all) })
            }
            (Ok(some), Err(_)) | (Err(_), Ok(some)) if !some.is_empty() => Ok(Found::Addresses(some)),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }

    /// One kind of addresses, from the first server that knows; none when the name has none.
    async fn ask(&self, name: &str, kind: Kind) -> Result<Vec<IpAddr>, Unknown> {
        let (mut why, mut answered) = (String::new(), false);
        for _ in 0..self.attempts {
            for server in &self.addresses {
                let answer = timeout(self.timeout, self.exchange(*server, name, kind)).await;
                answered |= matches!(answer, Ok(Ok(_)));
                match answer {
                    Ok(Ok(Reply::Addresses(addresses))) => return Ok(addresses),
                    Ok(Ok(Reply::NoSuchName)) => return Ok(Vec::new()),
                    Ok(Ok(Reply::Refused(code))) => why = format!("the name server {server} answers with error {code}"),
                    Ok(Ok(Reply::TooLong)) => why = format!("the name server {server} cuts its answer off"),
                    Ok(Err(error)) => why = format!("the name server {server}: {error}"),
                    Err(_) => why = format!("the name server {server} does not answer"),
                }
            }
        }
        Err(Unknown { why, answered })
    }

    async fn exchange(&self, server: SocketAddr, name: &str, kind: Kind) -> io::Result<Reply> {
        // Truncation is wanted: sixteen of the random bits.
        let question = message::Question::new(crate::sys::random::bits() as u16, name, kind)?;
        if !self.tcp {
            match by_udp(server, &question).await? {
                Reply::TooLong => {}
                reply => return Ok(reply),
            }
        }
        by_tcp(server, &question).await
    }
}

/// Waits until there is an answer to the question; how long is up to the caller.
async fn by_udp(server: SocketAddr, question: &message::Question) -> io::Result<Reply> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A port of its own for each question, which the kernel chooses at random; and connected, so that nobody else is heard.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(question.bytes()).await?;
    let mut buffer = [0; DATAGRAM];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(reply) = question.reply(&buffer[..length]) {
            return Ok(reply);
        }
    }
}

async fn by_tcp(server: SocketAddr, question: &message::Question) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let bytes = question.bytes();
    let mut request = (bytes.len() as u16).to_be_bytes().to_vec();
    request.extend(bytes);
    stream.write_all(&request).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; length.into()];
    stream.read_exact(&mut answer).await?;
    question
        .reply(&answer)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "that is not an answer to the question"))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn servers(addresses: Vec<SocketAddr>) -> Servers {
        let search = vec!["one.test".to_owned(), "two.test".to_owned()];
        Servers { addresses, search, ndots: 1, timeout: Duration::from_secs(20), attempts: 1, tcp: false }
    }

    /// What follows the question: flags, number of answers, and the answers. The question ends in its kind and class.
    fn answer(question: &[u8], flags: u16, answers: &[&[u8]]) -> Vec<u8> {
        let mut text = question.to_vec();
        text[2..4].copy_from_slice(&flags.to_be_bytes());
        text[6..8].copy_from_slice(&(answers.len() as u16).to_be_bytes());
        text.extend(answers.concat());
        text
    }

    /// 192.0.2.7 of the name at the beginning.
    const ADDRESS: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x09\0\x04\xc0\0\x02\x07";

    fn asks_for_a(question: &[u8]) -> bool {
        question.ends_with(b"\0\x01\0\x01")
    }

    /// A server whose answers by UDP `says` makes.
    async fn serve(says: fn(&[u8]) -> Vec<Vec<u8>>) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                for answer in says(&buffer[..length]) {
                    let _gone = socket.send_to(&answer, from).await;
                }
            }
        });
        address
    }

    const V4: [u8; 4] = [192, 0, 2, 7];

    #[tokio::test]
    async fn what_is_no_answer_to_the_question_is_passed_over() {
        let server = serve(|question| {
            let good = answer(question, 0x8180, if asks_for_a(question) { &[ADDRESS] } else { &[] });
            let mut other_number = good.clone();
            other_number[1] ^= 1;
            let mut other_name = good.clone();
            other_name[13] ^= 1;
            vec![question.to_vec(), b"x".to_vec(), other_number, other_name, good]
        })
        .await;
        assert_eq!(servers(vec![server]).lookup("web.test").await, Ok(vec![V4.into()]));
    }

    #[tokio::test]
    async fn a_name_is_searched_for_and_the_next_server_asked() {
        let failing = serve(|question| vec![answer(question, 0x8182, &[])]).await;
        let knows_two = serve(|question| {
            let known = question[12..].starts_with(b"\x03web\x03two\x04test\0");
            let flags = if known { 0x8180 } else { 0x8183 };
            vec![answer(question, flags, if known && asks_for_a(question) { &[ADDRESS] } else { &[] })]
        })
        .await;
        let both = servers(vec![failing, knows_two]);
        assert_eq!(both.lookup("web").await, Ok(vec![V4.into()]));
        assert_eq!(both.lookup("web.two.test.").await, Ok(vec![V4.into()]));
        assert!(both.lookup("web.").await.unwrap_err().contains("no such name"));
        // Only the last domain is known to its server; of the others it says that it does not know.
        let knows_last = serve(|question| {
            let known = question[12..].starts_with(b"\x03web\x03two\x04test\0");
            let addresses: &[&[u8]] = if asks_for_a(question) { &[ADDRESS] } else { &[] };
            vec![if known { answer(question, 0x8180, addresses) } else { answer(question, 0x8182, &[]) }]
        })
        .await;
        assert_eq!(servers(vec![knows_last]).lookup("web").await, Ok(vec![V4.into()]));
        let error = servers(vec![failing]).lookup("web").await.unwrap_err();
        assert!(error.contains(&failing.to_string()) && error.contains("error 2"), "{error}");
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let impatient =
            Servers { timeout: Duration::from_millis(300), ..servers(vec![silent.local_addr().unwrap(), knows_two]) };
        assert_eq!(impatient.lookup("web.two.test").await, Ok(vec![V4.into()]));
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_off_is_asked_for_by_tcp() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = udp.recv_from(&mut buffer).await {
                udp.send_to(&answer(&buffer[..length], 0x8380, &[]), from).await.unwrap();
            }
        });
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut question = vec![0; stream.read_u16().await.unwrap().into()];
                stream.read_exact(&mut question).await.unwrap();
                let many = vec![ADDRESS; if asks_for_a(&question) { 60 } else { 0 }];
                let text = answer(&question, 0x8180, &many);
                stream.write_u16(text.len() as u16).await.unwrap();
                stream.write_all(&text).await.unwrap();
            }
        });
        assert_eq!(servers(vec![address]).lookup("web.test").await, Ok(vec![IpAddr::from(V4); 60]));
    }

    #[test]
    fn names_are_searched_for_in_order() {
        let servers = servers(Vec::new());
        assert_eq!(servers.names("a"), ["a.one.test", "a.two.test", "a"]);
        assert_eq!(servers.names("a.b"), ["a.b", "a.b.one.test", "a.b.two.test"]);
        assert_eq!(servers.names("a."), ["a"]);
        // What cannot be a name with a domain can be one without.
        let long = "x".repeat(60);
        let domain = format!("{}.", [long.as_str(); 4].join("."));
        let odd = Servers { search: vec![domain, "a..b".to_owned(), "one.test.".to_owned()], ..servers };
        assert_eq!(odd.names(&long), [format!("{long}.one.test"), long.clone()]);
        let read = Servers::parse(b"nameserver 192.0.2.1\nsearch .\n").unwrap();
        assert_eq!(read.names("db").last().map(String::as_str), Some("db"));
        assert!(read.search.iter().all(|domain| !domain.contains("..") && domain != "."), "{read:?}");
    }
}
