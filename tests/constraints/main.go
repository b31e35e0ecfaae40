// J2: tells which constraints Nomad's scheduler takes for met, and which its servers refuse; for src/spec/constraint.rs.
//
//	go run . > table.txt
package main

import (
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/hashicorp/nomad/nomad/structs"
	"github.com/hashicorp/nomad/scheduler/feasible"
)

// The values of the attribute x that the lines below were asked with; null is none.
type values struct {
	Lefts []*string `json:"lefts"`
}

// A constraint, whether servers refuse it, and for each of those values whether it is met: 1 or 0.
type row struct {
	Attribute string `json:"attribute"`
	Operator  string `json:"operator"`
	Right     string `json:"right"`
	Malformed bool   `json:"malformed"`
	Met       string `json:"met"`
}

type context struct {
	regexps  map[string]*regexp.Regexp
	versions map[string]feasible.VerConstraints
	semvers  map[string]feasible.VerConstraints
}

func (c *context) Metrics() *structs.AllocMetric                              { return &structs.AllocMetric{} }
func (c *context) RegexpCache() map[string]*regexp.Regexp                     { return c.regexps }
func (c *context) VersionConstraintCache() map[string]feasible.VerConstraints { return c.versions }
func (c *context) SemverConstraintCache() map[string]feasible.VerConstraints  { return c.semvers }

func write(line any) {
	out, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
}

func say(lefts []*string, attribute, operator, right string) {
	constraint := &structs.Constraint{LTarget: attribute, Operand: operator, RTarget: right}
	line := row{Attribute: attribute, Operator: operator, Right: right, Malformed: constraint.Validate() != nil}
	for _, left := range lefts {
		node := &structs.Node{
			ID: "id", Name: "name", Datacenter: "dc1", NodePool: "default",
			Attributes: map[string]string{}, Meta: map[string]string{"m": "2"},
		}
		if left != nil {
			node.Attributes["x"] = *left
		}
		ctx := &context{map[string]*regexp.Regexp{}, map[string]feasible.VerConstraints{}, map[string]feasible.VerConstraints{}}
		if feasible.NewConstraintChecker(ctx, []*structs.Constraint{constraint}).Feasible(node) {
			line.Met += "1"
		} else {
			line.Met += "0"
		}
	}
	write(line)
}

func each(texts, operators, rights []string) {
	lefts := []*string{}
	for i := range texts {
		lefts = append(lefts, &texts[i])
	}
	lefts = append(lefts, nil)
	write(values{lefts})
	for _, operator := range operators {
		for _, right := range rights {
			say(lefts, "${attr.x}", operator, right)
		}
	}
}

func main() {
	texts := []string{"", "5", "10", "-3", "+5", "1.5", "1e3", "1e999", "inf", "NaN", "abc", "abd", "Z", "500MB", " 5"}
	each(texts, []string{"=", "==", "is", "!=", "not"}, []string{"", "5", "abc"})
	each(texts, []string{"<", "<=", ">", ">="}, []string{"5", "10", "1.5", "abc", "NaN", "500MB", "-1e999"})
	each([]string{"", "a"}, []string{"is_set", "is_not_set", "distinct_property", "other", ""}, []string{"", "1", "0", "-1", "x"})

	lists := []string{"", "a", "a,b", " a , b,c ", "ab", "b,,c"}
	each(lists, []string{"set_contains", "set_contains_all", "set_contains_any"}, []string{"", "a", "b,a", " c ,a", "z,a", ",", "ab"})

	versions := []string{
		"", "1", "1.2", "1.2.3", "v1.2.3", "V1.2", "1.2.0", "1.2.3.0", "1.2.3.4", "1.3", "2.0.0", "10", "0.9.9", "1.2.3-beta",
		"1.2.3-beta.2", "1.2.3-beta.11", "1.2.3-1", "1.2.3-01", "1.2.3beta", "1.2.3-", "1.2.3--a", "1.2.3+build.5", "1.2.3-rc1+b",
		"1.2.3-beta.", "1.2.", "1..2", "1.2.3 ", "6.18.5-generic", "6.1.0-37-amd64", "20.10.24+dfsg1", "1.2.x", "9223372036854775808",
		"1.2.3-rc~1", "1.2.3.0-beta", "1.2+", "unknown", "24.0.7-ce", "01.2",
	}
	demands := []string{
		"1.2.3", "= 1.2.3", "!= 1.2.3", "> 1.2", ">= 1.2, < 2.0", "< 1.2.3", "<= 1.2.3", "~> 1.2", "~> 1.2.3", "~> 1", "~>1.2.3.0",
		">= 1.2.3-beta", "> 1.2.3-beta.2", "~> 1.2.3-beta", "< 1.2.3-rc1", ">= 1.2.3-alpha", "= 1.2.3-beta", "!= 1.2.3-1",
		" >=  1.2 ", ">=v1.2", "=> 1.2", ">= 1.2,", ",", "", "latest", ">= 6.1", ">= 20.10", "1.2beta", ">= 1.2.3+x", "== 1.2.3",
		">= 0.6.1", "< 1.2.3.4", "> 1.2.3.0-alpha", "~> 1.2.3.0-alpha",
	}
	each(versions, []string{"version", "semver"}, demands)

	words := []string{"", "turing1", "amd64", "Web-01", "a.b", "a\nb", "x_y", "é", "a{2}", "]", "[a", "7", " ", "aab", "a\\b", "<b>"}
	patterns := []string{
		"", "^turing[1|2|3|4]", "(amd64|arm64)", "(?i)web-\\d+", "^.$", "(?s)a.b", "(?m)^b$", "\\bx_y\\b", "\\w+", "^\\w$", "\\W", "\\S", "^\\s$",
		"[^\\s]", "[\\d-]", "[[]", "[]]", "[^]]", "[[:alpha:]]{2}", "[[:^alpha:]]", "a{", "a{2}", "a{,2}", "a{1,}", "a{2,1}", "\\Qa{2}\\E", "\\Qa.b",
		"(", ")", "[", "a**", "a*?", "a+?b", "a*+", "*", "(?x)a", "(?P<n>a)", "(?<n>a)", "(?:a|b)", "(?=a)", "\\1", "\\x61", "\\x{e9}", "\\141", "\\z", "\\Z",
		"\\<b\\>", "[a&&b]", "[a~~b]", "[a--b]", "[b-a]", "\\_", "\\é", "\\/", "a|", "^$", "(?U)a+", "(?i)É", "[a-]", "[-a]", "\\B", "\\A7\\z",
		"(?i-s:A)", "(?u)a", "\\h", "[\\b]", "[\\D]", "a{1001}", "x{0}", "\\", "\\C", "[[.a.]]", "{2}", "(?i",
	}
	each(words, []string{"regexp"}, patterns)

	x := "2"
	lefts := []*string{&x}
	write(values{lefts})
	for _, attribute := range []string{
		"", "x", "${attr.x}", "attr.x", "$attr.x", "${attr.x", "$attr.x}", "${node.class}", "${node.region}", "${node.unique.id}", "${node.unique.name}",
		"${node.datacenter}", "${node.pool}", "${meta.m}", "${meta.none}", "${device.attr.memory}", "${env.x}", "${ attr.x }", "${attr.x}-y", "x${attr.x}",
	} {
		for _, right := range []string{"2", "${attr.x}", "${meta.m}", "${meta.none}", "${node.region}", "${NOMAD_META_x}", "x"} {
			for _, operator := range []string{"=", "!="} {
				say(lefts, attribute, operator, right)
			}
		}
		say(lefts, attribute, "is_set", "")
		say(lefts, attribute, "is_not_set", "")
	}
}
