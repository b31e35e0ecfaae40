package clients

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestB4SessionsLoseNothing opens sessions in a task by Nomad's package, fifty at once: each is sent bytes of its own and sends them
// back, with what it says besides and a status of its own. AGENTBIN_FULL=1 opens a thousand. (B4)
func TestB4SessionsLoseNothing(t *testing.T) {
	count := 150
	if os.Getenv("AGENTBIN_FULL") != "" {
		count = 1_000
	}
	us := begin(t)
	client := us.client()
	alloc := us.run(client, service("entered", "", "exec sleep 600"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	next := make(chan int)
	var working sync.WaitGroup
	for range 50 {
		working.Go(func() {
			for number := range next {
				if err := session(t, client, alloc, rand.New(rand.NewPCG(seed, uint64(number)))); err != nil {
					t.Errorf("session %d: %v", number, err)
				}
			}
		})
	}
	for number := range count {
		next <- number
	}
	close(next)
	working.Wait()
}

func session(t *testing.T, client *api.Client, alloc *api.Allocation, random *rand.Rand) error {
	sent := make([]byte, random.IntN(300_000))
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	status := random.IntN(100)
	var out, bad bytes.Buffer
	script := fmt.Sprintf("exec 3>&1; tee /dev/fd/3 | sha256sum >&2; exit %d", status)
	code, err := client.Allocations().Exec(t.Context(), alloc, "t", false, []string{"/bin/sh", "-c", script}, bytes.NewReader(sent), &out, &bad,
		make(chan api.TerminalSize), nil)
	if err != nil {
		return err
	}
	if code != status {
		return fmt.Errorf("status %d, not %d", code, status)
	}
	if sum := fmt.Sprintf("%x  -\n", sha256.Sum256(sent)); bad.String() != sum {
		return fmt.Errorf("%q arrived, and %q was sent", bad.String(), sum)
	}
	if !bytes.Equal(out.Bytes(), sent) {
		return errors.New("what came back is not what was sent")
	}
	return nil
}
