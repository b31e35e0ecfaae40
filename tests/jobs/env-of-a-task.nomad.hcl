# A task knows its names, ids and directories.
# prints: task web of job site in group front
# prints: local secrets alloc are there

job "site" {
  type = "batch"

  group "front" {
    task "web" {
      driver = "exec"

      config {
        command = "/bin/sh"
        args = ["-c", <<-EOF
          echo task $NOMAD_TASK_NAME of job $NOMAD_JOB_NAME in group $NOMAD_GROUP_NAME
          test -d "$NOMAD_TASK_DIR" && test -d "$NOMAD_SECRETS_DIR" && test -d "$NOMAD_ALLOC_DIR" && echo local secrets alloc are there
        EOF
        ]
      }
    }
  }
}
