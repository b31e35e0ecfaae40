// A plugin without go-plugin, for what go-plugin never does on Linux. Its one argument:
//
//	tcp         listens on a TCP port, and writes more than pipes hold before it serves
//	tls12       with AutoMTLS, but nothing newer than TLS 1.2
//	wrong-cert  shows another certificate in the handshake than on the connection
//	no-alpn     with AutoMTLS, without ALPN
//
// It serves health alone, so that it also stands for a plugin without stdio, broker and controller.
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	check(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// noALPN hands the TLS connection over as it is; grpc-go's own credentials insist on ALPN.
type noALPN struct {
	credentials.TransportCredentials
	config *tls.Config
}

func (c noALPN) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured := tls.Server(conn, c.config)
	return secured, nil, secured.Handshake()
}

func main() {
	mode := os.Args[1]
	var options []grpc.ServerOption
	var field string
	folder := os.Getenv("PLUGIN_UNIX_SOCKET_DIR")
	if folder == "" {
		folder = os.TempDir()
	}
	network, address := "unix", filepath.Join(folder, fmt.Sprintf("odd%d", os.Getpid()))
	if mode == "tcp" {
		network, address = "tcp", "127.0.0.1:0"
	} else {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM([]byte(os.Getenv("PLUGIN_CLIENT_CERT")))
		own := certificate()
		config := &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
		if mode == "tls12" {
			config.MaxVersion = tls.VersionTLS12
		}
		shown := own.Certificate[0]
		if mode == "wrong-cert" {
			shown = certificate().Certificate[0]
		}
		field = base64.RawStdEncoding.EncodeToString(shown)
		secure := credentials.NewTLS(config)
		if mode == "no-alpn" {
			secure = noALPN{secure, config}
		}
		options = append(options, grpc.Creds(secure))
	}
	listener, err := net.Listen(network, address)
	check(err)
	server := grpc.NewServer(options...)
	service := health.NewServer()
	service.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, service)
	fmt.Printf("1|2|%s|%s|grpc|%s\n", network, listener.Addr(), field)
	if mode == "tcp" {
		os.Stdout.Write(bytes.Repeat([]byte("x"), 1<<20)) //nolint:errcheck // it blocks or it does not
		os.Stderr.Write(bytes.Repeat([]byte("x"), 1<<20)) //nolint:errcheck // the same
	}
	check(server.Serve(listener))
}
