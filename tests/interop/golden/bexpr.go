package main

import (
	"encoding/json"
	"os"

	"github.com/hashicorp/go-bexpr"
)

// An expression, and what it is asked of.
type filterQuestion struct {
	Expression string `json:"expression"`
	Value      any    `json:"value"`
}

// Whether it fits; or why not: "syntax" where it is not an expression, "value" where it cannot be asked of the value.
type filterAnswer struct {
	Fits  bool   `json:"fits"`
	Error string `json:"error"`
}

func bexprAnswers() error {
	var questions []filterQuestion
	decoder := json.NewDecoder(os.Stdin)
	// Whole numbers stay whole, as in a struct's fields.
	decoder.UseNumber()
	if err := decoder.Decode(&questions); err != nil {
		return err
	}
	answers := make([]filterAnswer, 0, len(questions))
	for _, question := range questions {
		answers = append(answers, askFilter(question))
	}
	return json.NewEncoder(os.Stdout).Encode(answers)
}

func askFilter(question filterQuestion) filterAnswer {
	evaluator, err := bexpr.CreateEvaluator(question.Expression)
	if err != nil {
		return filterAnswer{Error: "syntax"}
	}
	fits, err := evaluator.Evaluate(numbers(question.Value))
	if err != nil {
		return filterAnswer{Error: "value"}
	}
	return filterAnswer{Fits: fits}
}

// json.Number is a string to the package wherever it stands in a list.
func numbers(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, member := range value {
			value[key] = numbers(member)
		}
	case []any:
		for at, member := range value {
			value[at] = numbers(member)
		}
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return whole
		}
		number, _ := value.Float64()
		return number
	}
	return value
}
