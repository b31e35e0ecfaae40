# Metadata of job, group and task, the innermost first.
# prints: owner=ops tier=gold stage=canary

job "meta" {
  type = "batch"

  meta {
    owner = "ops"
    tier  = "bronze"
    stage = "live"
  }

  group "meta" {
    meta {
      tier  = "silver"
      stage = "canary"
    }

    task "show" {
      driver = "exec"

      meta {
        tier = "gold"
      }

      config {
        command = "/bin/sh"
        args    = ["-c", "echo owner=$NOMAD_META_owner tier=$NOMAD_META_TIER stage=$NOMAD_META_STAGE"]
      }
    }
  }
}
