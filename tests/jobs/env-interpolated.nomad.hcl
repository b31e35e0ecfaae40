# Attributes of the node and metadata stand in the environment.
# prints: linux/acme/alpha-7

job "names" {
  type = "batch"

  meta {
    customer = "acme"
  }

  group "names" {
    task "names" {
      driver = "raw_exec"

      env {
        SUFFIX = "7"
        LABEL  = "${attr.kernel.name}/${NOMAD_META_customer}"
      }

      config {
        command = "/usr/bin/env"
        args    = ["sh", "-c", "echo $LABEL/alpha-$SUFFIX"]
      }
    }
  }
}
