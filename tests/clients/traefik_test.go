package clients

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	ptypes "github.com/traefik/paerser/types"
	"github.com/traefik/traefik/v3/pkg/config/dynamic"
	"github.com/traefik/traefik/v3/pkg/provider/nomad"
	"github.com/traefik/traefik/v3/pkg/safe"
)

// TestJ3TraefikRoutesToServices gives Traefik's provider the services of two jobs, by looking from time to time and by watching events. (J3)
func TestJ3TraefikRoutesToServices(t *testing.T) {
	for _, watch := range []bool{false, true} {
		t.Run(map[bool]string{false: "polls", true: "watches"}[watch], func(t *testing.T) {
			us := begin(t)
			client := us.client()
			us.run(client, service("web", routed("web", "Host(`web.example`)"), "exec sleep 600"))

			var provider nomad.Provider
			provider.SetDefaults()
			provider.Endpoint = &nomad.EndpointConfig{Address: us.url(""), Token: us.newToken("read")}
			provider.ExposedByDefault = false
			provider.Watch = watch
			provider.RefreshInterval = ptypes.Duration(200 * time.Millisecond)
			if err := provider.Init(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			pool := safe.NewPool(ctx)
			defer pool.Stop()
			defer cancel()
			configurations := make(chan dynamic.Message, 1)
			if err := provider.Provide(configurations, pool); err != nil {
				t.Fatal(err)
			}
			// next waits for a configuration that is as it is wanted: the routers' names, each with one server.
			next := func(wanted ...string) dynamic.Configuration {
				t.Helper()
				deadline := time.After(patience)
				for {
					select {
					case message := <-configurations:
						var routers []string
						for name := range message.Configuration.HTTP.Routers {
							routers = append(routers, name)
						}
						slices.Sort(routers)
						if slices.Equal(routers, wanted) {
							return *message.Configuration
						}
					case <-deadline:
						t.Fatalf("no configuration routes to %v", wanted)
					}
				}
			}
			first := next("web")
			if rule := first.HTTP.Routers["web"].Rule; rule != "Host(`web.example`)" {
				t.Errorf("the rule is %s", rule)
			}
			registered, _, err := client.Services().Get("web", nil)
			if err != nil || len(registered) != 1 {
				t.Fatal(registered, err)
			}
			servers := first.HTTP.Services["web"].LoadBalancer.Servers
			wanted := "http://" + net.JoinHostPort(registered[0].Address, strconv.Itoa(registered[0].Port))
			if len(servers) != 1 || servers[0].URL != wanted {
				t.Errorf("the servers are %v, not %s", servers, wanted)
			}

			us.run(client, service("api", routed("api", "Path(`/api`)")+`
    service {
      name     = "hidden"
      port     = "http"
      provider = "nomad"
    }`, "exec sleep 600"))
			next("api", "web")
			if _, _, err := client.Jobs().Deregister("web", true, nil); err != nil {
				t.Fatal(err)
			}
			next("api")
		})
	}
}

// routed is a service of a group with a port, to which a rule leads.
func routed(name, rule string) string {
	return fmt.Sprintf(`
    network {
      port "http" {}
    }
    service {
      name     = %[1]q
      port     = "http"
      provider = "nomad"
      tags     = ["traefik.enable=true", "traefik.http.routers.%[1]s.rule=%[2]s"]
    }`, name, rule)
}
