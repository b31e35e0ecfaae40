// J4: what is said of keys, certificates and hashes that templates make: they differ each time, so that they are compared by what they
// are good for.
package main

import (
	"bytes"
	"crypto"
	"crypto/dsa"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// One line of the input: a template to be rendered once, something that templates are given, or what one rendered to.
type question struct {
	Render   string `json:"render"`
	Make     string `json:"make"`
	Describe string `json:"describe"`
	Hash     string `json:"hash"`
	Password string `json:"password"`
}

type dsaKey struct {
	Version       int
	P, Q, G, Y, X *big.Int
}

func shown(what string, err error) string {
	if err != nil {
		return what + ": " + err.Error()
	}
	return what
}

// Whether what was read is written again as the same bytes.
func same(der, again []byte, err error) string {
	if err != nil {
		return " not written: " + err.Error()
	}
	if !bytes.Equal(der, again) {
		return " written otherwise"
	}
	return ""
}

// A private key: what it is, and what is wrong with it.
func key(block *pem.Block) (string, crypto.PublicKey) {
	der := block.Bytes
	switch block.Type {
	case "RSA PRIVATE KEY":
		k, err := x509.ParsePKCS1PrivateKey(der)
		if err != nil {
			return err.Error(), nil
		}
		what := fmt.Sprint("rsa ", k.N.BitLen(), " ", k.E) + same(der, x509.MarshalPKCS1PrivateKey(k), nil)
		return shown(what, k.Validate()), k.Public()
	case "EC PRIVATE KEY":
		k, err := x509.ParseECPrivateKey(der)
		if err != nil {
			return err.Error(), nil
		}
		again, err := x509.MarshalECPrivateKey(k)
		return "ec " + k.Params().Name + same(der, again, err), k.Public()
	case "PRIVATE KEY":
		k, err := x509.ParsePKCS8PrivateKey(der)
		if err != nil {
			return err.Error(), nil
		}
		again, err := x509.MarshalPKCS8PrivateKey(k)
		return fmt.Sprintf("%T", k) + same(der, again, err), k.(crypto.Signer).Public()
	case "DSA PRIVATE KEY":
		var k dsaKey
		rest, err := asn1.Unmarshal(der, &k)
		if err != nil {
			return err.Error(), nil
		}
		again, err := asn1.Marshal(k)
		what := fmt.Sprint("dsa ", k.Version, " ", k.P.BitLen(), " ", k.Q.BitLen(), " ", len(rest)) + same(der, again, err)
		one := big.NewInt(1)
		good := k.P.ProbablyPrime(20) && k.Q.ProbablyPrime(20) &&
			new(big.Int).Mod(new(big.Int).Sub(k.P, one), k.Q).Sign() == 0 &&
			k.G.Cmp(one) > 0 && new(big.Int).Exp(k.G, k.Q, k.P).Cmp(one) == 0 &&
			k.X.Sign() > 0 && k.X.Cmp(k.Q) < 0 && new(big.Int).Exp(k.G, k.X, k.P).Cmp(k.Y) == 0
		private := dsa.PrivateKey{PublicKey: dsa.PublicKey{Parameters: dsa.Parameters{P: k.P, Q: k.Q, G: k.G}, Y: k.Y}, X: k.X}
		hash := sha256.Sum256([]byte("x"))
		r, s, err := dsa.Sign(rand.Reader, &private, hash[:])
		good = good && err == nil && dsa.Verify(&private.PublicKey, hash[:], r, s)
		return fmt.Sprint(what, " good ", good), nil
	}
	return "no private key: " + block.Type, nil
}

// A certificate, without what differs each time. The first one of all is the one that may have issued it.
func certificate(c, first *x509.Certificate) string {
	var b strings.Builder
	say := func(format string, values ...any) { fmt.Fprintf(&b, format+"; ", values...) }
	say("version %d", c.Version)
	// A byte or two less than 16 is chance.
	say("serial of 128 bits %v", c.SerialNumber.Sign() > 0 && c.SerialNumber.BitLen() > 96 && c.SerialNumber.BitLen() <= 128)
	say("subject %x issuer %x", c.RawSubject, c.RawIssuer)
	since := time.Since(c.NotBefore)
	// A second more or less is chance: the clock is read twice.
	minutes := math.Round(float64(c.NotAfter.Unix()-c.NotBefore.Unix()) / 60)
	say("from now %v, minutes %.0f", since > -2*time.Minute && since < 10*time.Minute, minutes)
	say("signed %v, key %v", c.SignatureAlgorithm, c.PublicKeyAlgorithm)
	say("usage %b, extended %v %v", c.KeyUsage, c.ExtKeyUsage, c.UnknownExtKeyUsage)
	say("ca %v %v %d %v", c.BasicConstraintsValid, c.IsCA, c.MaxPathLen, c.MaxPathLenZero)
	say("dns %q ip %v", c.DNSNames, c.IPAddresses)
	var info struct {
		Algorithm asn1.RawValue
		Key       asn1.BitString
	}
	must(asn1.Unmarshal(c.RawSubjectPublicKeyInfo, &info))
	sum := sha256.Sum256(info.Key.RightAlign())
	say("algorithm %x", info.Algorithm.FullBytes)
	for _, e := range c.Extensions {
		value := hex.EncodeToString(e.Value)
		value = strings.ReplaceAll(value, hex.EncodeToString(sum[:20]), "OWN")
		if len(first.SubjectKeyId) > 0 {
			value = strings.ReplaceAll(value, hex.EncodeToString(first.SubjectKeyId), "FIRST")
		}
		say("extension %v %v %s", e.Id, e.Critical, value)
	}
	say("signed by itself %v", c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil)
	say("signed by the first %v", first.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil)
	roots := x509.NewCertPool()
	roots.AddCert(first)
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageCodeSigning} {
		_, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: c.NotBefore})
		if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) {
			// Its text has the time.
			err = fmt.Errorf("invalid because of %d", invalid.Reason)
		}
		say("use %v", err)
	}
	for _, name := range []string{"a.example", "b.example", "10.0.0.1", "fd00::1"} {
		say("%s %v", name, c.VerifyHostname(name) == nil)
	}
	return b.String()
}

func inPEM(label string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: label, Bytes: der}))
}

// A key in one of the forms that there are, or an authority that has more than sprig gives one, with its key.
func makeKey(what string) string {
	curve := func(c elliptic.Curve) *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(c, rand.Reader)) }
	sec1 := func(c elliptic.Curve) string {
		return inPEM("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(curve(c))))
	}
	pkcs8 := func(k any) string { return inPEM("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(k))) }
	pkcs1 := func(bits int) string {
		return inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(must(rsa.GenerateKey(rand.Reader, bits))))
	}
	switch what {
	case "p224":
		return sec1(elliptic.P224())
	case "p256":
		return sec1(elliptic.P256())
	case "p384":
		return sec1(elliptic.P384())
	case "p521":
		return sec1(elliptic.P521())
	case "p384 pkcs8":
		return pkcs8(curve(elliptic.P384()))
	case "p256 long":
		// A zero in front of the number, and no public key: Go reads that.
		k := curve(elliptic.P256())
		number := append([]byte{0}, must(k.Bytes())...)
		return inPEM("EC PRIVATE KEY", must(asn1.Marshal(struct {
			Version int
			Key     []byte
			Curve   asn1.ObjectIdentifier `asn1:"explicit,tag:0"`
		}{1, number, asn1.ObjectIdentifier{1, 2, 840, 10045, 3, 1, 7}})))
	case "ed25519":
		return pkcs8(must2(ed25519.GenerateKey(rand.Reader)))
	case "rsa 2048":
		return pkcs1(2048)
	case "rsa 3072":
		return pkcs1(3072)
	case "rsa pkcs8":
		return pkcs8(must(rsa.GenerateKey(rand.Reader, 2048)))
	case "ca":
		k := curve(elliptic.P256())
		subject := pkix.Name{CommonName: "an authority", Country: []string{"DE"}, Organization: []string{"Größe & Söhne", "x"},
			ExtraNames: []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{1, 2, 3}, Value: "y"}}}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: subject, SubjectKeyId: []byte("an id of its own"),
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(10000 * 24 * time.Hour), IsCA: true,
			BasicConstraintsValid: true, MaxPathLen: 1, KeyUsage: x509.KeyUsageCertSign,
			ExtKeyUsage:         []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			PermittedDNSDomains: []string{"example"}, OCSPServer: []string{"http://x.example"},
			CRLDistributionPoints: []string{"http://y.example"}, EmailAddresses: []string{"a@x.example"}}
		der := must(x509.CreateCertificate(rand.Reader, template, template, k.Public(), k))
		return inPEM("CERTIFICATE", der) + inPEM("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(k)))
	}
	panic("no key of that name: " + what)
}

func must2[T, U any](_ T, value U, err error) U { return must(value, err) }

// What all blocks of a text are, and whether each key is that of the certificate before it.
func describe(text string) string {
	var lines []string
	var first, last *x509.Certificate
	rest := []byte(text)
	for {
		var block *pem.Block
		block, rest = pem.Decode(rest)
		if block == nil {
			break
		}
		if !bytes.Contains([]byte(text), pem.EncodeToMemory(block)) {
			lines = append(lines, "lines of another length")
		}
		if block.Type == "CERTIFICATE" {
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				lines = append(lines, err.Error())
				continue
			}
			if first == nil {
				first = c
			}
			last = c
			lines = append(lines, certificate(c, first))
			continue
		}
		what, public := key(block)
		if last != nil {
			type comparable interface{ Equal(crypto.PublicKey) bool }
			switch p := last.PublicKey.(type) {
			case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
				what += fmt.Sprint(" of the certificate ", p.(comparable).Equal(public))
			}
		}
		lines = append(lines, what)
	}
	return strings.Join(lines, "\n") + "\nand " + fmt.Sprint(len(strings.TrimSpace(string(rest)))) + " bytes more"
}

func judge(q question) answer {
	said := ""
	switch {
	case q.Render != "":
		return render(q.Render, true, brain())
	case q.Make != "":
		said = makeKey(q.Make)
	case q.Describe != "":
		said = describe(q.Describe)
	default:
		cost, err := bcrypt.Cost([]byte(q.Hash))
		said = fmt.Sprint(cost, " ", err, " ", bcrypt.CompareHashAndPassword([]byte(q.Hash), []byte(q.Password)))
	}
	out := hex.EncodeToString([]byte(said))
	return answer{Hex: &out}
}

func judgeAll() {
	in := json.NewDecoder(os.Stdin)
	for in.More() {
		var q question
		if err := in.Decode(&q); err != nil {
			panic(err)
		}
		fmt.Println(string(must(json.Marshal(judge(q)))))
	}
}
