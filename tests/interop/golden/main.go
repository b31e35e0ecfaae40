// golden answers what the real encoders write, for tests/interop_golden.rs.
//
//	golden write     a JSON list of {name, dialect, hex}: the samples as go-msgpack and go-cty write them
//	golden read      the same list on stdin; fails unless go-msgpack reads every sample of the struct dialect from it
//	golden hclspec   a JSON list of {spec, body, native, vars} on stdin; a JSON list of {hex} or {error}
//	golden bexpr     a JSON list of {expression, value} on stdin; a JSON list of {fits, error}
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/zclconf/go-cty/cty"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"
)

// Nomad's settings.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.BasicHandle.TimeNotBuiltin = true
	h.MapType = reflect.TypeFor[map[string]any]()
	h.TypeInfos = codec.NewTypeInfos([]string{"codec"})
	return h
}()

type sample struct {
	Name    string `json:"name"`
	Dialect string `json:"dialect"`
	Hex     string `json:"hex"`
}

type scalars struct {
	Ints     []int64
	Uints    []uint64
	Floats   []float64
	Float32s []float32
	Bools    []bool
	Texts    []string
	Raw      []byte
	Empty    []byte
	Times    []time.Time
	Nil      *int
	Nested   map[string]map[string]int
}

func structs() map[string]any {
	zoned := time.FixedZone("", 2*3600+1)
	return map[string]any{
		"state":       fullState(),
		"state_empty": taskState{},
		"scalars": scalars{
			Ints: []int64{
				0, 1, 127, 128, 129, 255, 256, 32767, 32768, 65535, 65536, math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32,
				math.MaxUint32 + 1, math.MaxInt64, -1, -31, -32, -33, -128, -129, -32768, -32769, math.MinInt32, math.MinInt64,
			},
			Uints:    []uint64{0, 127, 128, 255, 256, 65535, 65536, math.MaxUint32, math.MaxUint32 + 1, math.MaxUint64},
			Floats:   []float64{0, 1, -1.5, 0.1, math.MaxFloat64, math.Inf(1)},
			Float32s: []float32{0, 1.5, 0.1},
			Bools:    []bool{true, false},
			Texts: []string{
				"", "a", strings.Repeat("b", 31), strings.Repeat("c", 32), strings.Repeat("d", 255), strings.Repeat("e", 256),
				strings.Repeat("f", 65535), strings.Repeat("g", 65536), "ä\"\x00",
			},
			Raw: []byte{0xff, 0x00, 0xc1},
			Times: []time.Time{
				{}, time.Unix(1700000000, 123456789).UTC(), time.Unix(-1, 999999999).In(zoned),
				time.Unix(4102444800, 0).In(time.FixedZone("", 5*3600)),
			},
			Nested: map[string]map[string]int{"k": {"n": 200}},
		},
	}
}

func number(text string) cty.Value {
	return cty.MustParseNumberVal(text)
}

func values() map[string]cty.Value {
	texts := []cty.Value{}
	for _, n := range []int{0, 1, 31, 32, 255, 256, 65535, 65536} {
		texts = append(texts, cty.StringVal(strings.Repeat("x", n)))
	}
	numbers := []cty.Value{}
	for _, text := range numberTexts {
		numbers = append(numbers, number(text))
	}
	many := []cty.Value{}
	for i := range 17 {
		many = append(many, cty.NumberIntVal(int64(i)))
	}
	return map[string]cty.Value{
		"texts":   cty.TupleVal(texts),
		"numbers": cty.TupleVal(numbers),
		"bools":   cty.TupleVal([]cty.Value{cty.True, cty.False, cty.NullVal(cty.String)}),
		"many":    cty.ListVal(many),
		"set":     cty.SetVal([]cty.Value{cty.StringVal("b"), cty.StringVal("a"), cty.StringVal("ä")}),
		"map":     cty.MapVal(map[string]cty.Value{"b": cty.NumberIntVal(1), "a": cty.NumberIntVal(-1)}),
		"object": cty.ObjectVal(map[string]cty.Value{
			"z": cty.EmptyObjectVal, "a": cty.NullVal(cty.Bool), "list": cty.ListValEmpty(cty.String),
		}),
		"any": cty.ObjectVal(map[string]cty.Value{
			"text": cty.StringVal("x"), "number": cty.NumberIntVal(200), "none": cty.NullVal(cty.DynamicPseudoType),
			"object": cty.ObjectVal(map[string]cty.Value{"b": cty.ListVal([]cty.Value{cty.True}), "a": cty.EmptyTupleVal}),
		}),
	}
}

var numberTexts = []string{
	"0", "127", "128", "255", "256", "65535", "65536", "4294967295", "4294967296", "9223372036854775807", "9223372036854775808",
	"18446744073709551615", "18446744073709551616", "-1", "-32", "-33", "-128", "-129", "-9223372036854775808",
	"-9223372036854775809", "0.5", "-0.25", "0.1", "1e3", "1e-7", "1.5e1", "123456789012345678901234567890", "1e40", "3.14159",
}

func dynamic(value cty.Value) cty.Type {
	kinds := map[string]cty.Type{}
	for name := range value.Type().AttributeTypes() {
		kinds[name] = cty.DynamicPseudoType
	}
	return cty.Object(kinds)
}

func write() error {
	samples := []sample{}
	for name, value := range structs() {
		var out []byte
		if err := codec.NewEncoderBytes(&out, handle).Encode(value); err != nil {
			return err
		}
		samples = append(samples, sample{name, "struct", hex.EncodeToString(out)})
	}
	for name, value := range values() {
		kind := value.Type()
		if name == "any" {
			kind = dynamic(value)
		}
		out, err := ctymsgpack.Marshal(value, kind)
		if err != nil {
			return err
		}
		samples = append(samples, sample{name, "cty", hex.EncodeToString(out)})
	}
	return json.NewEncoder(os.Stdout).Encode(samples)
}

func read() error {
	var samples []sample
	if err := json.NewDecoder(os.Stdin).Decode(&samples); err != nil {
		return err
	}
	known := structs()
	for _, s := range samples {
		if s.Dialect != "struct" {
			continue
		}
		raw, err := hex.DecodeString(s.Hex)
		if err != nil {
			return err
		}
		expected, ok := known[s.Name]
		if !ok {
			return fmt.Errorf("no sample %q", s.Name)
		}
		got := reflect.New(reflect.TypeOf(expected))
		if err := codec.NewDecoderBytes(raw, handle).Decode(got.Interface()); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		// Encoded again: zones and empty slices have no other equality.
		var want, have []byte
		if err := codec.NewEncoderBytes(&want, handle).Encode(expected); err != nil {
			return err
		}
		if err := codec.NewEncoderBytes(&have, handle).Encode(got.Interface()); err != nil {
			return err
		}
		if string(want) != string(have) {
			return fmt.Errorf("%s: Go reads\n%x\nbut had written\n%x", s.Name, have, want)
		}
		delete(known, s.Name)
	}
	if len(known) > 0 {
		return fmt.Errorf("samples were left out: %v", reflect.ValueOf(known).MapKeys())
	}
	return nil
}

func main() {
	modes := map[string]func() error{"write": write, "read": read, "hclspec": hclspec, "bexpr": bexprAnswers}
	mode, ok := modes[strings.Join(os.Args[1:], " ")]
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: golden write|read|hclspec|bexpr")
		os.Exit(2)
	}
	if err := mode(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
