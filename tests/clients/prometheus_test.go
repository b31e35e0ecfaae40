package clients

import (
	"net/http"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// TestP1PrometheusReadsTheMetrics scrapes as Prometheus does: with a bearer token, which only has to read, and its own parser. (P1)
func TestP1PrometheusReadsTheMetrics(t *testing.T) {
	us := begin(t)
	client := us.client()
	us.run(client, service("measured", "", "exec sleep 600"))
	scrape := func(token string) *http.Response {
		request, err := http.NewRequest(http.MethodGet, us.url("/v1/metrics?format=prometheus"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		return response
	}
	for _, token := range []string{"", "00000000-0000-0000-0000-000000000000"} {
		if refused := scrape(token); refused.StatusCode != http.StatusForbidden && refused.StatusCode != http.StatusUnauthorized {
			t.Errorf("with the token %q: %s", token, refused.Status)
		}
	}
	response := scrape(us.newToken("read"))
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	if format := expfmt.ResponseFormat(response.Header); format.FormatType() != expfmt.TypeTextPlain {
		t.Errorf("%s is no text of Prometheus", response.Header.Get("Content-Type"))
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, wanted := range map[string]float64{
		"nomad_client_allocations_running": 1,
		"nomad_client_allocated_memory":    32,
		"nomad_client_allocated_cpu":       20,
	} {
		family := families[name]
		if family == nil || len(family.Metric) != 1 {
			t.Errorf("%s: %v", name, family)
			continue
		}
		if value := family.Metric[0].GetGauge().GetValue(); value != wanted {
			t.Errorf("%s is %v, not %v", name, value, wanted)
		}
	}
	restarts := families["nomad_client_allocs_restart"]
	if restarts == nil || restarts.GetType().String() != "COUNTER" {
		t.Errorf("restarts are counted: %v", restarts)
	}
	for name, family := range families {
		if family.Help == nil {
			t.Errorf("%s has no help", name)
		}
	}
}
