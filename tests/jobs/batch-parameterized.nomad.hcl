# A parameterized job runs once with a payload and metadata.
# before: printf 'one\ntwo\n' > $DIR/rows
# args: --payload $DIR/rows --meta customer=acme
# prints: acme: 2 rows, normal

job "import" {
  type = "batch"

  parameterized {
    payload       = "required"
    meta_required = ["customer"]
    meta_optional = ["priority"]
  }

  meta {
    priority = "normal"
  }

  group "import" {
    task "import" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "echo \"$NOMAD_META_CUSTOMER: $(wc -l < local/rows.csv) rows, $NOMAD_META_PRIORITY\""]
      }

      dispatch_payload {
        file = "rows.csv"
      }
    }
  }
}
