package interop

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// A3: AutoMTLS, with the real go-plugin as host, and by hand for what it never does.

// plugins are the roles and, as the one that other hosts than Nomad may want too, a driver.
func plugins(t testing.TB) map[string][]string {
	all := roles(t)
	all["driver"] = []string{"driver", "raw_exec"}
	return all
}

func TestAutoMTLS(t *testing.T) {
	for name, arguments := range plugins(t) {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, &plugin.ClientConfig{Cmd: exec.Command(agentbin(t), arguments...), AutoMTLS: true})
			h.ping(t)
			if name == "executor" {
				if got := call(t, h.conn, executorService, "Version", `{}`).get("version"); got != "2.0.0" {
					t.Errorf("version %v", got)
				}
			}
			// The same address without the keys, which is all that a reattach has.
			config := *h.client.ReattachConfig()
			stranger := plugin.NewClient(&plugin.ClientConfig{
				HandshakeConfig:  handshake,
				Plugins:          plugin.PluginSet{"any": connPlugin{}},
				AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
				Reattach:         &config,
			})
			if protocol, err := stranger.Client(); err == nil {
				if err := protocol.Ping(); err == nil {
					t.Error("answers a host without a certificate")
				}
			}
			h.ping(t)
			if took := h.kill(); took > 2*time.Second {
				t.Errorf("kill took %v", took)
			}
			if alive(config.Pid) {
				t.Error("lives on")
			}
		})
	}
}

// hostIdentity is a host's key with a certificate that is as ordinary as can be.
func hostIdentity(t testing.TB) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: "localhost"},
		DNSNames:     []string{"localhost"},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(text)
}

// handshakeCertificate is field 6 of a line, as a Go host reads it.
func handshakeCertificate(t testing.TB, line string) (*x509.Certificate, string) {
	t.Helper()
	fields := strings.Split(line, "|")
	if len(fields) != 6 {
		t.Fatalf("%d fields in %q", len(fields), line)
	}
	der, err := base64.RawStdEncoding.DecodeString(fields[5])
	if err != nil {
		t.Fatalf("field 6: %v", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return certificate, fields[3]
}

func TestCertificateProperties(t *testing.T) {
	_, text := hostIdentity(t)
	seen := map[string]bool{}
	for name, arguments := range plugins(t) {
		for range 2 {
			r := startRaw(t, []string{cookie, versions, "PLUGIN_CLIENT_CERT=" + text}, arguments...)
			before := time.Now()
			c, _ := handshakeCertificate(t, r.firstLine(t))
			key, ok := c.PublicKey.(*ecdsa.PublicKey)
			if !ok || key.Curve != elliptic.P521() {
				t.Errorf("%s: key is %T, not on P-521", name, c.PublicKey)
			}
			if c.SignatureAlgorithm != x509.ECDSAWithSHA512 {
				t.Errorf("%s: signed with %v", name, c.SignatureAlgorithm)
			}
			if err := c.CheckSignatureFrom(c); err != nil || !bytes.Equal(c.RawIssuer, c.RawSubject) {
				t.Errorf("%s: not signed by itself: %v", name, err)
			}
			if got := c.Subject.String(); got != "CN=localhost,O=HashiCorp" {
				t.Errorf("%s: subject %s", name, got)
			}
			if len(c.DNSNames) != 1 || c.DNSNames[0] != "localhost" || len(c.IPAddresses)+len(c.URIs)+len(c.EmailAddresses) > 0 {
				t.Errorf("%s: names %v %v %v %v", name, c.DNSNames, c.IPAddresses, c.URIs, c.EmailAddresses)
			}
			if c.SerialNumber.Sign() <= 0 || c.SerialNumber.BitLen() > 128 || c.SerialNumber.BitLen() < 64 {
				t.Errorf("%s: serial %v", name, c.SerialNumber)
			}
			if ago := before.Sub(c.NotBefore); ago < 25*time.Second || ago > 30*time.Second+patience {
				t.Errorf("%s: valid from %v, %v ago", name, c.NotBefore, ago)
			}
			if span := c.NotAfter.Sub(c.NotBefore); span != 262980*time.Hour+30*time.Second {
				t.Errorf("%s: valid for %v", name, span)
			}
			usage := x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment | x509.KeyUsageKeyAgreement | x509.KeyUsageCertSign
			if c.KeyUsage != usage {
				t.Errorf("%s: key usage %b", name, c.KeyUsage)
			}
			if len(c.ExtKeyUsage) != 2 || c.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || c.ExtKeyUsage[1] != x509.ExtKeyUsageServerAuth {
				t.Errorf("%s: extended key usage %v", name, c.ExtKeyUsage)
			}
			if !c.BasicConstraintsValid || !c.IsCA {
				t.Errorf("%s: no authority", name)
			}
			for _, extension := range c.Extensions {
				// 2.5.29.15 is key usage, 2.5.29.19 basic constraints.
				if id := extension.Id.String(); (id == "2.5.29.15" || id == "2.5.29.19") && !extension.Critical {
					t.Errorf("%s: %s is not critical", name, id)
				}
			}
			seen[c.SerialNumber.String()] = true
		}
	}
	if len(seen) != 2*len(plugins(t)) {
		t.Errorf("launches share a certificate: %v", seen)
	}
}

// health asks over a connection that is made with these credentials.
func health(t testing.TB, socket string, config *tls.Config) error {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return net.Dial("unix", socket) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "plugin"})
	return err
}

func TestOnlyTheHostIsLetIn(t *testing.T) {
	own, text := hostIdentity(t)
	for name, arguments := range plugins(t) {
		t.Run(name, func(t *testing.T) {
			r := startRaw(t, []string{cookie, versions, "PLUGIN_CLIENT_CERT=" + text}, arguments...)
			certificate, socket := handshakeCertificate(t, r.firstLine(t))
			pool := x509.NewCertPool()
			pool.AddCert(certificate)
			config := func(clients ...tls.Certificate) *tls.Config {
				return &tls.Config{RootCAs: pool, ServerName: "localhost", Certificates: clients}
			}
			if err := health(t, socket, config()); err == nil {
				t.Error("lets a client in that shows no certificate")
			}
			stranger, _ := hostIdentity(t)
			if err := health(t, socket, config(stranger)); err == nil {
				t.Error("lets a client in that shows another certificate")
			}
			// The right certificate, which is not a secret, without its key.
			thief := tls.Certificate{Certificate: own.Certificate, PrivateKey: stranger.PrivateKey}
			if err := health(t, socket, config(thief)); err == nil {
				t.Error("lets a client in that lacks the key")
			}
			for what, limit := range map[string]uint16{"TLS 1.3": 0, "TLS 1.2": tls.VersionTLS12} {
				right := config(own)
				right.MaxVersion = limit
				if err := health(t, socket, right); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			old := config(own)
			old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
			if err := health(t, socket, old); err == nil {
				t.Error("speaks TLS 1.1")
			}
			// Without ALPN, and without TLS: closed, with no answer that is HTTP/2.
			conn, err := tls.Dial("unix", socket, config(own))
			if err == nil {
				conn.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // the read below fails instead
				if n, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
					t.Errorf("answers without ALPN: %d bytes, %v", n, err)
				}
				conn.Close()
			}
			plain, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			plain.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // as above
			plain.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
			answer := make([]byte, 64)
			n, err := plain.Read(answer)
			// A TLS alert record (type 21) is fine, a frame is not.
			if os.IsTimeout(err) || (n > 0 && answer[0] != 21) {
				t.Errorf("answers without TLS: %q, %v", answer[:n], err)
			}
			// One who connects and says nothing keeps nobody waiting.
			mute, err := net.Dial("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer mute.Close()
			if err := health(t, socket, config(own)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUnreadableHostCertificate(t *testing.T) {
	own, _ := hostIdentity(t)
	for name, arguments := range plugins(t) {
		t.Run(name, func(t *testing.T) {
			r := startRaw(t, []string{cookie, versions, "PLUGIN_CLIENT_CERT=no certificate"}, arguments...)
			certificate, socket := handshakeCertificate(t, r.firstLine(t))
			pool := x509.NewCertPool()
			pool.AddCert(certificate)
			if err := health(t, socket, &tls.Config{RootCAs: pool, ServerName: "localhost", Certificates: []tls.Certificate{own}}); err == nil {
				t.Error("lets somebody in")
			}
			if !alive(r.command.Process.Pid) {
				t.Error("ended")
			}
			if name != "executor" { // which logs to its file
				eventually(t, "it is logged", func() bool { return strings.Contains(r.stderr.String(), "PLUGIN_CLIENT_CERT") })
			}
		})
	}
}
