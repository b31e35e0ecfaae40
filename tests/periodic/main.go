// Tells when the package that Nomad uses says that a cron expression comes next; for tests/interop_periodic.rs. A line is
// expression, zone and seconds since 1970, with tabs between them; the answer is seconds, "never" or "refused"; at
// "stalled", which is an expression that the package never answers, the program ends.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/cronexpr"
)

const stalled = "stalled"

func answer(line string) (text string) {
	defer func() {
		if recover() != nil {
			text = "refused"
		}
	}()
	fields := strings.Split(line, "\t")
	zone, err := time.LoadLocation(fields[1])
	if err != nil {
		return "refused"
	}
	expression, err := cronexpr.Parse(fields[0])
	if err != nil {
		return "refused"
	}
	seconds, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return "refused"
	}
	// The package has loops without end; a call that has one cannot be ended but with the program.
	found := make(chan time.Time, 1)
	go func() { found <- expression.Next(time.Unix(seconds, 0).In(zone)) }()
	var next time.Time
	select {
	case next = <-found:
	case <-time.After(5 * time.Second):
		return stalled
	}
	if next.IsZero() {
		return "never"
	}
	return strconv.FormatInt(next.Unix(), 10)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for lines.Scan() {
		text := answer(lines.Text())
		fmt.Fprintln(out, text)
		if text == stalled {
			return
		}
	}
}
