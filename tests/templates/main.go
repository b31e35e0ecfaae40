// J4: renders the templates of cases.txt with the real library, for tests/interop_templates.rs.
//
//	go run . < cases.txt
//
// With "crypto" it reads questions about what sprig's functions for keys and certificates make; see crypto.go.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"

	dep "github.com/hashicorp/consul-template/dependency"
	"github.com/hashicorp/consul-template/template"
	"github.com/hashicorp/nomad/api"
)

// What became of a template: its bytes, or the line of the mistake.
type answer struct {
	Hex   *string `json:"hex"`
	Line  int     `json:"line"`
	Error string  `json:"error"`
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// What the templates find; tests/interop_templates.rs has the same.
func brain() *template.Brain {
	b := template.NewBrain()
	for key, value := range map[string]string{"app/name": "web", "app/port": "8080", "app/db/host": "db.example"} {
		query := must(dep.NewKVGetQuery(key))
		query.EnableBlocking()
		b.Remember(query, value)
		b.Remember(must(dep.NewKVGetQuery(key)), value)
	}
	b.Remember(must(dep.NewKVListQuery("app")), []*dep.KeyPair{
		{Path: "app/db/host", Key: "db/host", Value: "db.example"},
		{Path: "app/name", Key: "name", Value: "web"},
		{Path: "app/port", Key: "port", Value: "8080"},
	})
	items := map[string]string{"user": "admin", "pass": "s3 \"cret\"", "odd-key": "x"}
	variable := dep.NewNomadVariable(&api.Variable{Namespace: "default", Path: "nomad/jobs/x", CreateIndex: 1, ModifyIndex: 1, Items: items})
	for _, path := range []string{"nomad/jobs/x"} {
		query := must(dep.NewNVGetQuery("default", path))
		b.Remember(query, &variable.Items)
		query.EnableBlocking()
		b.Remember(query, &variable.Items)
	}
	b.Remember(must(dep.NewNVListQuery("default", "nomad")), []*dep.NomadVarMeta{variable.Metadata()})
	b.Remember(must(dep.NewVaultReadQuery("secret/data/x")), &dep.Secret{
		Data: map[string]interface{}{"data": map[string]interface{}{"password": "p<w>", "n": 3.0}},
	})
	var nomad []*dep.NomadService
	var health []*dep.HealthService
	for i, tag := range []string{"blue", "green"} {
		id, port := fmt.Sprintf("web-%d", i), 8080+i
		nomad = append(nomad, &dep.NomadService{ID: id, Name: "web", Node: "node", Address: "10.0.0.1", Port: port,
			Datacenter: "dc1", Tags: dep.ServiceTags{"http", tag}, JobID: "job", AllocID: "alloc"})
		health = append(health, &dep.HealthService{Node: "node", NodeAddress: "10.0.0.1", ID: id,
			Name: "web", Address: "10.0.0.1", Port: port, Tags: dep.ServiceTags{"http", tag}, Status: "passing",
			ServiceMeta: map[string]string{"color": tag}})
	}
	b.Remember(must(dep.NewNomadServiceQuery("web")), nomad)
	b.Remember(must(dep.NewNomadServiceQuery("none")), []*dep.NomadService{})
	b.Remember(must(dep.NewHealthServiceQuery("web")), health)
	b.Remember(must(dep.NewHealthServiceQuery("none")), []*dep.HealthService{})
	return b
}

var place = regexp.MustCompile(`template: [^:\n]*:(\d+)`)

func render(text string, strict bool, b *template.Brain) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{Error: fmt.Sprint("panic: ", r)}
		}
	}()
	t := must(template.NewTemplate(&template.NewTemplateInput{Contents: text, ErrMissingKey: strict,
		FunctionDenylist: []string{"plugin", "writeToFile"}, SandboxPath: "/nonexistent"}))
	result, err := t.Execute(&template.ExecuteInput{Brain: b, Env: []string{"NAME=web", "EMPTY=", "LIST=a,b,c",
		"JSON={\"a\":1,\"b\":[true,null,\"x\"],\"c\":{\"d\":\"<e>\"},\"f\":1.5,\"g\":1e21}", "BAD=\xff\xfeok"}})
	if err != nil {
		line := 0
		if found := place.FindStringSubmatch(err.Error()); found != nil {
			line = must(strconv.Atoi(found[1]))
		}
		return answer{Line: line, Error: err.Error()}
	}
	out := hex.EncodeToString(result.Output)
	return answer{Hex: &out}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "crypto" {
		judgeAll()
		return
	}
	b := brain()
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	raw := regexp.MustCompile(`‹([0-9a-f]{2})›`)
	for in.Scan() {
		line := in.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		text, strict := strings.CutPrefix(line, "!")
		text = strings.ReplaceAll(text, "↵", "\n")
		text = raw.ReplaceAllStringFunc(text, func(s string) string {
			return string(must(hex.DecodeString(raw.FindStringSubmatch(s)[1])))
		})
		first := string(must(json.Marshal(render(text, strict, b))))
		for range 32 {
			// Maps of Go have no order: what depends on it is not a case.
			if again := string(must(json.Marshal(render(text, strict, b)))); again != first {
				panic("Go renders it differently from one time to the next: " + line + "\n" + first + "\n" + again)
			}
		}
		fmt.Println(first)
	}
}
