package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hcldec"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	hcljson "github.com/hashicorp/hcl/v2/json"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctymsgpack "github.com/zclconf/go-cty/cty/msgpack"
)

// A specification in JSON, one member per kind.
type spec struct {
	Object     map[string]spec `json:"object"`
	Array      []spec          `json:"array"`
	Attr       *attr           `json:"attr"`
	Block      *block          `json:"block"`
	BlockAttrs *attr           `json:"block_attrs"`
	BlockList  *block          `json:"block_list"`
	BlockSet   *block          `json:"block_set"`
	BlockMap   *block          `json:"block_map"`
	Default    []spec          `json:"default"`
	Literal    string          `json:"literal"`
}

type attr struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Required bool   `json:"required"`
}

type block struct {
	Name     string   `json:"name"`
	Required bool     `json:"required"`
	Min      int      `json:"min"`
	Max      int      `json:"max"`
	Labels   []string `json:"labels"`
	Nested   spec     `json:"nested"`
}

type question struct {
	Spec spec              `json:"spec"`
	Body string            `json:"body"`
	Vars map[string]string `json:"vars"`
}

type answer struct {
	Hex   string `json:"hex,omitempty"`
	Error string `json:"error,omitempty"`
}

// What a specification and a configuration may call.
var functions = map[string]function.Function{
	"abs": stdlib.AbsoluteFunc, "coalesce": stdlib.CoalesceFunc, "concat": stdlib.ConcatFunc,
	"hasindex": stdlib.HasIndexFunc, "int": stdlib.IntFunc, "jsondecode": stdlib.JSONDecodeFunc,
	"jsonencode": stdlib.JSONEncodeFunc, "length": stdlib.LengthFunc, "lower": stdlib.LowerFunc, "max": stdlib.MaxFunc,
	"min": stdlib.MinFunc, "reverse": stdlib.ReverseFunc, "strlen": stdlib.StrlenFunc, "substr": stdlib.SubstrFunc,
	"upper": stdlib.UpperFunc,
}

func hclspec() error {
	var questions []question
	if err := json.NewDecoder(os.Stdin).Decode(&questions); err != nil {
		return err
	}
	answers := []answer{}
	for _, q := range questions {
		out, err := q.ask()
		if err != nil {
			answers = append(answers, answer{Error: err.Error()})
		} else {
			answers = append(answers, answer{Hex: hex.EncodeToString(out)})
		}
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func (q question) ask() (out []byte, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	s, err := q.Spec.convert("")
	if err != nil {
		return nil, err
	}
	vars := map[string]cty.Value{}
	for name, value := range q.Vars {
		vars[name] = cty.StringVal(value)
	}
	file, diags := hcljson.Parse([]byte(q.Body), "")
	if diags.HasErrors() {
		return nil, diags
	}
	value, diags := hcldec.Decode(file.Body, s, &hcl.EvalContext{Variables: vars, Functions: functions})
	if diags.HasErrors() {
		return nil, diags
	}
	return ctymsgpack.Marshal(value, value.Type())
}

// Inside an object the key is the name that counts where none is given; everywhere else there is none.
func (s spec) convert(key string) (hcldec.Spec, error) {
	nameless := errors.New("a name is missing")
	named := func(name string) string {
		if name == "" {
			name = key
		}
		if name != "" {
			nameless = nil
		}
		return name
	}
	switch {
	case s.Object != nil:
		out := hcldec.ObjectSpec{}
		for name, member := range s.Object {
			converted, err := member.convert(name)
			if err != nil {
				return nil, err
			}
			out[name] = converted
		}
		return out, nil
	case s.Array != nil:
		out := hcldec.TupleSpec{}
		for _, item := range s.Array {
			converted, err := item.convert("")
			if err != nil {
				return nil, err
			}
			out = append(out, converted)
		}
		return out, nil
	case s.Attr != nil:
		kind, err := parseType(s.Attr.Type)
		out := &hcldec.AttrSpec{Name: named(s.Attr.Name), Type: kind, Required: s.Attr.Required}
		return out, errors.Join(err, nameless)
	case s.Block != nil:
		nested, err := s.Block.Nested.convert("")
		return &hcldec.BlockSpec{TypeName: named(s.Block.Name), Required: s.Block.Required, Nested: nested}, err
	case s.BlockAttrs != nil:
		kind, err := parseType(s.BlockAttrs.Type)
		return &hcldec.BlockAttrsSpec{
			TypeName: named(s.BlockAttrs.Name), ElementType: kind, Required: s.BlockAttrs.Required,
		}, err
	case s.BlockList != nil:
		b := s.BlockList
		nested, err := b.Nested.convert("")
		return &hcldec.BlockListSpec{TypeName: named(b.Name), MinItems: b.Min, MaxItems: b.Max, Nested: nested}, err
	case s.BlockSet != nil:
		b := s.BlockSet
		nested, err := b.Nested.convert("")
		return &hcldec.BlockSetSpec{TypeName: named(b.Name), MinItems: b.Min, MaxItems: b.Max, Nested: nested}, err
	case s.BlockMap != nil:
		nested, err := s.BlockMap.Nested.convert("")
		return &hcldec.BlockMapSpec{TypeName: named(s.BlockMap.Name), LabelNames: s.BlockMap.Labels, Nested: nested}, err
	case s.Default != nil:
		primary, err := s.Default[0].convert("")
		if err != nil {
			return nil, err
		}
		fallback, err := s.Default[1].convert("")
		return &hcldec.DefaultSpec{Primary: primary, Default: fallback}, err
	}
	expr, diags := hclsyntax.ParseExpression([]byte(s.Literal), "literal", hcl.InitialPos)
	if diags.HasErrors() {
		return nil, diags
	}
	value, diags := expr.Value(&hcl.EvalContext{Functions: functions})
	if diags.HasErrors() {
		return nil, diags
	}
	return &hcldec.LiteralSpec{Value: value}, nil
}

func parseType(text string) (cty.Type, error) {
	if strings.TrimSpace(text) == "" {
		return cty.NilType, errors.New("a type is missing")
	}
	expr, diags := hclsyntax.ParseExpression([]byte(text), "type", hcl.InitialPos)
	if diags.HasErrors() {
		return cty.NilType, diags
	}
	kind, diags := typeexpr.TypeConstraint(expr)
	if diags.HasErrors() {
		return cty.NilType, diags
	}
	return kind, nil
}
