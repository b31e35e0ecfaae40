# Three tasks that share the allocation's folder: the first prepares, the second works, the third tidies up.
#
#   agentbin run examples/pipeline.nomad.hcl

job "pipeline" {
  type = "batch"

  group "words" {
    task "fetch" {
      lifecycle {
        hook = "prestart"
      }

      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "printf 'to be or not to be that is the question\\n' > $NOMAD_ALLOC_DIR/data/words; echo fetched $(wc -w < $NOMAD_ALLOC_DIR/data/words) words"]
      }
    }

    task "count" {
      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "tr ' ' '\\n' < $NOMAD_ALLOC_DIR/data/words | sort | uniq -c | sort -k1,1nr -k2 | tee $NOMAD_ALLOC_DIR/data/counts | head -n 2"]
      }
    }

    task "report" {
      lifecycle {
        hook = "poststop"
      }

      driver = "exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo $(wc -l < $NOMAD_ALLOC_DIR/data/counts) different words, most often: $(head -n 1 $NOMAD_ALLOC_DIR/data/counts)"]
      }
    }
  }
}
