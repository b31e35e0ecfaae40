// J1: tells what the real parser of job files says, and which keys it knows; for scripts/corpus and src/jobspec/tests/keys.rs.
//
//	jobfiles keys          every block and key, one a line
//	jobfiles types         every type of the API's job and its fields, one a line, for src/jobspec/form/types.txt
//	jobfiles parse FILE... one JSON object a file
//	jobfiles raw FILE...   the same, with the job as the command's -output writes it
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/jobspec2"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "keys":
		keys()
	case len(os.Args) == 2 && os.Args[1] == "types":
		types(reflect.TypeOf(api.Job{}), map[reflect.Type]bool{})
	case len(os.Args) > 2 && (os.Args[1] == "parse" || os.Args[1] == "raw"):
		for _, file := range os.Args[2:] {
			answer := verdict(file)
			if answer.Job != nil && os.Args[1] == "parse" {
				answer.Job.Canonicalize()
			}
			out, err := json.Marshal(answer)
			if err != nil {
				panic(err)
			}
			fmt.Println(string(out))
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: jobfiles keys | types | parse FILE... | raw FILE...")
		os.Exit(2)
	}
}

type answer struct {
	File  string   `json:"file"`
	Error string   `json:"error,omitempty"`
	Unset []string `json:"unset,omitempty"`
	Job   *api.Job `json:"job,omitempty"`
}

// What the command would do: an API object as JSON, else a job file; a file FILE.vars beside it has values.
func verdict(file string) (a answer) {
	a.File = file
	defer func() {
		if r := recover(); r != nil {
			a.Error = fmt.Sprintf("panic: %v", r)
		}
	}()
	text, err := os.ReadFile(file)
	if err != nil {
		a.Error = err.Error()
		return a
	}
	config := &jobspec2.ParseConfig{Path: file, Body: text, AllowFS: true, Strict: true}
	if _, err := os.Stat(file + ".vars"); err == nil {
		config.VarFiles = []string{file + ".vars"}
	}
	job, err := jobspec2.ParseWithConfig(config)
	if err != nil {
		if plain := fromAPI(text); plain != nil {
			job, err = plain, nil
		}
	}
	if err != nil {
		a.Error = err.Error()
		if strings.Contains(a.Error, "Unset variable") {
			a.Unset = unset(file, text)
		}
		return a
	}
	a.Job = job
	return a
}

// Lines of a var file for every variable without a default, of its type.
func unset(file string, text []byte) []string {
	parsed, _ := hclparse.NewParser().ParseHCL(text, file)
	body, ok := parsed.Body.(*hclsyntax.Body)
	if !ok {
		return nil
	}
	var lines []string
	for _, block := range body.Blocks {
		if block.Type != "variable" || len(block.Labels) != 1 || block.Body.Attributes["default"] != nil {
			continue
		}
		kind := "string"
		if t := block.Body.Attributes["type"]; t != nil {
			r := t.Expr.Range()
			kind = strings.Trim(string(text[r.Start.Byte:r.End.Byte]), "\"")
		}
		value := map[string]string{"number": "1", "bool": "true"}[kind]
		switch {
		case value != "":
		case strings.HasPrefix(kind, "list"), strings.HasPrefix(kind, "set"), strings.HasPrefix(kind, "tuple"):
			value = "[]"
		case strings.HasPrefix(kind, "map"):
			value = "{}"
		default:
			value = `"value"`
		}
		lines = append(lines, block.Labels[0]+" = "+value)
	}
	return lines
}

// A job as the HTTP API has it, alone or as the member Job.
func fromAPI(text []byte) *api.Job {
	var wrapped struct{ Job *api.Job }
	if json.Unmarshal(text, &wrapped) == nil && wrapped.Job != nil {
		return wrapped.Job
	}
	var plain api.Job
	if json.Unmarshal(text, &plain) == nil && plain.ID != nil {
		return &plain
	}
	return nil
}

// Each kind of body once, by the name of its Go type, with what its keys take.
func keys() {
	bodies := map[string][]string{}
	body(reflect.TypeOf(api.Job{}), bodies)
	names := make([]string, 0, len(bodies))
	for name := range bodies {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Printf("[%s]\n%s\n", name, strings.Join(bodies[name], "\n"))
	}
}

func body(t reflect.Type, bodies map[string][]string) {
	if _, done := bodies[t.Name()]; done {
		return
	}
	bodies[t.Name()] = nil
	var lines []string
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("hcl"), ",")
		switch {
		case strings.Contains(options, "label"):
			continue
		case name == "" || name == "-":
			continue
		case strings.Contains(options, "block"):
			inner, often := field.Type, "one"
			for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice || inner.Kind() == reflect.Map && inner.Elem().Kind() == reflect.Pointer {
				if inner.Kind() != reflect.Pointer {
					often = "many"
				}
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				body(inner, bodies)
				lines = append(lines, fmt.Sprintf("%s block %s %s %d", name, inner.Name(), often, labels(inner)))
			} else {
				lines = append(lines, name+" block free one 0")
			}
		default:
			lines = append(lines, name+" key "+what(field.Type))
		}
	}
	sort.Strings(lines)
	bodies[t.Name()] = lines
}

// The word for what a key takes.
func what(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "flag"
	case reflect.Slice:
		return "texts"
	case reflect.Map:
		return "map"
	}
	if t == reflect.TypeOf(time.Duration(0)) {
		return "duration"
	}
	return "number"
}

// How many labels a block of this body has.
func labels(t reflect.Type) (count int) {
	for i := range t.NumField() {
		if strings.Contains(t.Field(i).Tag.Get("hcl"), ",label") {
			count++
		}
	}
	return count
}

// A type with its fields in their order: JSON name, kind, name in a job file ("-" none, "=" the block's label). A "?" after the
// kind is a pointer, "+" a field that is left out when it is empty.
func types(t reflect.Type, done map[reflect.Type]bool) {
	if done[t] {
		return
	}
	done[t] = true
	fmt.Printf("[%s]\n", t.Name())
	var inner []reflect.Type
	for i := range t.NumField() {
		field := t.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("hcl"), ",")
		written, omit, _ := strings.Cut(field.Tag.Get("json"), ",")
		if written == "-" {
			continue
		}
		if written == "" {
			written = field.Name
		}
		switch {
		case strings.Contains(options, "label"):
			name = "="
		case name == "":
			name = "-"
		}
		kind, of := kindOf(field.Type)
		if of != nil {
			inner = append(inner, of)
		}
		if omit == "omitempty" {
			kind += "+"
		}
		fmt.Println(written, kind, name)
	}
	for _, of := range inner {
		types(of, done)
	}
}

// The word for a field's type, and the struct that is in it.
func kindOf(t reflect.Type) (string, reflect.Type) {
	pointer := ""
	if t.Kind() == reflect.Pointer && t.Elem().Kind() != reflect.Struct {
		t, pointer = t.Elem(), "?"
	}
	switch t {
	case reflect.TypeOf(time.Duration(0)):
		return "duration" + pointer, nil
	case reflect.TypeOf([]byte{}):
		return "bytes", nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "one:" + t.Elem().Name(), t.Elem()
	case reflect.Map:
		if t.Elem().Kind() == reflect.Pointer {
			return "named:" + t.Elem().Elem().Name(), t.Elem().Elem()
		}
		return map[reflect.Kind]string{reflect.String: "strings", reflect.Slice: "lists", reflect.Interface: "any"}[t.Elem().Kind()], nil
	case reflect.Slice:
		of := t.Elem()
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct {
			return "many:" + of.Name(), of
		}
		return map[reflect.Kind]string{reflect.String: "texts", reflect.Uint16: "ports"}[of.Kind()], nil
	case reflect.String:
		return "text" + pointer, nil
	case reflect.Bool:
		return "flag" + pointer, nil
	}
	return t.Kind().String() + pointer, nil
}
