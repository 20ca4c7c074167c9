/*
 * How a batch is held, handed over and settled by two triggerers, as docs/model.md explains it.
 *
 * Two messages that were received together; another consumer, who takes whatever is visible; a user; crashes and stalls.
 * Everything is one loop of guarded steps, so a crash, a stall or the other triggerer comes between any two of them.
 * There is no clock. What the code ensures by seconds is a guard here, marked "Time:".
 *
 * Each rule of the protocol can be taken out by -DWITHOUT_<rule>. CRASHES, STALLS, MARKS, KEEPER_CLEARS, RUN_CLEARS and
 * TIMEOUTS say how often each of these may happen; with MESSAGES=1 the second message does not take part.
 */

#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef STALLS
#define STALLS 0
#endif
#ifndef MARKS
#define MARKS 0
#endif
#ifndef KEEPER_CLEARS
#define KEEPER_CLEARS 0
#endif
#ifndef RUN_CLEARS
#define RUN_CLEARS 0
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef TIMEOUTS
#define TIMEOUTS 0
#endif

/* A message at the service, and whose receipt handle is the newest. */
#define VISIBLE 0
#define IN_FLIGHT 1
#define DELETED 2
byte place[2] = VISIBLE;
#define FIRST_RECEIPT 0
#define SECOND_RECEIPT 1 /* that of the run after it was cleared */
#define ANOTHER_CONSUMER 2
byte newest[2] = ANOTHER_CONSUMER;

/* The work on a message, by batch: 0 was received first, 1 by the run after it was cleared. */
#define NO_WORK 0
#define AT_WORK 1
#define SUCCEEDED 2
#define FAILED 3
#define KILLED 4
byte work[4];
#define WORK(b, m) work[(b) * 2 + (m)]

/* The keeper's task, as Airflow's database has it; where its trigger is to run; the XComs about the batch. */
#define NOT_RECEIVED 0
#define NOT_STARTED 1
#define BEGINS 2
#define DEFERRED 3
#define ENDED 4
byte keeper = NOT_RECEIVED;
byte assigned = 0;
bit tried_before = 0;
bit cleared = 0; /* the run was, and has not received again */
byte batch = 0;  /* the run's */
#define NO_NOTE 2
byte noted_batch = NO_NOTE; /* of the receiving task: it is left when the keeper's task begins again */
bit noted[2];
#define NOBODY 2
byte taken_by = NOBODY;
byte taken_batch = 0;
byte also_taken_by = NOBODY; /* the same, of the receiving task */
byte also_taken_batch = 0;

/* The triggerers. */
#define DEAD 0
#define STANDS_STILL 1
#define UP 2
byte triggerer[2] = UP;
bit quiet[2]; /* it stood still, and has not heard yet what happened meanwhile */

/* What a triggerer does about a batch. */
#define NOTHING 0
#define HANDS_OFF 1
#define TAKES_OVER 2 /* holds, and has not told yet */
#define KEEPS 3
#define GIVES_BACK 4
#define RECEIVES 5
byte role[4];
#define ROLE(b, t) role[(b) * 2 + (t)]
bit took_over[4]; /* from another process, which may not have heard yet */
#define TOOK_OVER(b, t) took_over[(b) * 2 + (t)]
bit told[4]; /* that it took over */
#define TOLD(b, t) told[(b) * 2 + (t)]

/* What it knows of a message, and its calls that are under way. */
#define NOT_HELD 0
#define HELD 1
#define DECIDED 2 /* to be settled, not sent */
#define SENT 3
#define DONE 4
byte lease[8];
bit lapsed[8];
bit extending[8];
bit extended[8];
#define NO_CALL 0
#define DELETES 1
#define RELEASES 2
byte intended[8];
byte settling[8];
#define AT(b, t, m) ((b) * 4 + (t) * 2 + (m))

/* What happened, for the invariants alone. */
bit settled[4];    /* by this receipt: it was deleted or released */
bit has_lapsed[4]; /* this receipt's lease */
byte crashes, stalls, marks, keeper_clears, run_clears, timeouts;
bit sent_again;
bit was_late; /* the keeper was not there in time, and what was held for it was given up */

#define SETTLED(b, m) settled[(b) * 2 + (m)]
#define HAS_LAPSED(b, m) has_lapsed[(b) * 2 + (m)]
#define FAULTS (crashes + stalls)
#define ACTIONS (marks + keeper_clears + run_clears + was_late)

#define OTHER(t) (1 - (t))
#define IS_UP(t) (triggerer[t] == UP)
#define HOLDS(b, t, m) \
  (IS_UP(t) && ROLE(b, t) != NOTHING && (lease[AT(b, t, m)] == HELD || lease[AT(b, t, m)] == DECIDED))
#define EXTENDS(b, t) (extending[AT(b, t, 0)] || extending[AT(b, t, 1)])
#define IS_TOLD(b) (taken_by != NOBODY && taken_batch == (b))
#define KEEPER_SAYS_OTHER(b, t) (taken_by == OTHER(t) && taken_batch == (b))
#ifdef WITHOUT_TELLING_TWICE
#define IS_TAKEN_BY_OTHER(b, t) KEEPER_SAYS_OTHER(b, t)
#else
#define IS_TAKEN_BY_OTHER(b, t) (also_taken_by == OTHER(t) && also_taken_batch == (b))
#endif
#define WAS_TAKEN_BY_OTHER(b, t) (KEEPER_SAYS_OTHER(b, t) || !IS_TOLD(b) && IS_TAKEN_BY_OTHER(b, t))
#define NOTE_IS_ABOUT(b) (noted_batch == (b))
#define NOTE_SAYS(b, t, m) (noted[m] == (lease[AT(b, t, m)] >= DECIDED))
#ifdef WITHOUT_NOTES_NAME_THEIR_BATCH
#define IS_READ_AS_ABOUT(b) (noted_batch != NO_NOTE)
#else
#define IS_READ_AS_ABOUT(b) NOTE_IS_ABOUT(b)
#endif

inline forget(b, t) {
  ROLE(b, t) = NOTHING;
  TOOK_OVER(b, t) = 0;
  TOLD(b, t) = 0;
  lease[AT(b, t, 0)] = NOT_HELD;
  lease[AT(b, t, 1)] = NOT_HELD;
  intended[AT(b, t, 0)] = NO_CALL;
  intended[AT(b, t, 1)] = NO_CALL;
  lapsed[AT(b, t, 0)] = 0;
  lapsed[AT(b, t, 1)] = 0
}

inline write_note(b, t) {
  noted_batch = b;
  noted[0] = lease[AT(b, t, 0)] >= DECIDED;
  noted[1] = lease[AT(b, t, 1)] >= DECIDED
}

inline give_back_one(b, t, m) {
  if
  :: lease[AT(b, t, m)] == HELD -> lease[AT(b, t, m)] = DECIDED; intended[AT(b, t, m)] = RELEASES
  :: else
  fi
}

/* Not about a batch of before the run was cleared: the note would take the place of one about the new batch. */
inline note_end(b) {
  if
#ifndef WITHOUT_NOTE_OF_GIVING_BACK
  :: !cleared && batch == (b) -> noted_batch = b; noted[0] = 1; noted[1] = 1
#endif
  :: else
  fi
}

inline give_back(b, t) {
  ROLE(b, t) = GIVES_BACK;
  note_end(b);
  give_back_one(b, t, 0);
  give_back_one(b, t, 1)
}

/* From the arguments of the trigger, and the note. What lapsed is not always known: it may be taken for lapsed, but
 * never the other way round. */
inline hold_unless_settled(b, t, m) {
  if
  :: IS_READ_AS_ABOUT(b) && noted[m] -> lease[AT(b, t, m)] = DONE
  :: WORK(b, m) == NO_WORK -> lease[AT(b, t, m)] = DONE
  :: else ->
    lease[AT(b, t, m)] = HELD;
    if
    :: lapsed[AT(b, t, m)] = 1
    :: !HAS_LAPSED(b, m) -> lapsed[AT(b, t, m)] = 0
    fi
  fi
}

/* What the run's work says about a message of a batch: Airflow's states are the run's, whichever batch it worked on. */
#define SAYS(b, m, how) \
  (batch == (b) && WORK(b, m) == how || batch != (b) && (WORK(batch, 0) == how || WORK(batch, 1) == how))

/* ---------------------------------------------------------------- the service */

#define SERVICE(b, t, m) \
  :: atomic { extending[AT(b, t, m)] -> printf("an extension of message %d by triggerer %d arrives\n", m, t); \
      \
      extending[AT(b, t, m)] = 0; \
      if \
      :: place[m] == IN_FLIGHT && newest[m] == (b) -> skip \
      :: place[m] == IN_FLIGHT && newest[m] != (b) -> assert(!SETTLED(b, m)) /* 3: nothing settled is extended */ \
      :: else -> if :: lease[AT(b, t, m)] == HELD -> lease[AT(b, t, m)] = DONE /* lost */ :: else fi \
      fi } \
  :: atomic { settling[AT(b, t, m)] == DELETES -> printf("the deletion of message %d by triggerer %d arrives\n", m, t); \
      \
      assert(WORK(b, m) == SUCCEEDED); /* 1: nothing is deleted whose work did not succeed */ \
      settling[AT(b, t, m)] = NO_CALL; \
      place[m] = DELETED; \
      SETTLED(b, m) = 1; \
      answer(b, t, m) } \
  :: atomic { settling[AT(b, t, m)] == RELEASES -> printf("the release of message %d by triggerer %d arrives\n", m, t); \
      \
      settling[AT(b, t, m)] = NO_CALL; \
      if \
      :: place[m] == IN_FLIGHT -> \
        assert(newest[m] == (b)); /* 3: nothing that somebody else has is released */ \
        assert(WORK(b, m) != AT_WORK || ACTIONS); /* 2: nothing that is worked on is given away */ \
        place[m] = VISIBLE; \
        SETTLED(b, m) = 1; \
        if \
        :: answer(b, t, m) \
        :: !sent_again -> lose_answer(b, t, m) \
        fi \
      :: else -> answer(b, t, m) \
      fi }

inline answer(b, t, m) {
  if
  :: lease[AT(b, t, m)] == SENT ->
    lease[AT(b, t, m)] = DONE;
#ifdef WITHOUT_NOTE_BEFORE_THE_CALL
    if
    :: IS_UP(t) && ROLE(b, t) == KEEPS -> write_note(b, t)
    :: else
    fi
#endif
  :: else
  fi
}

inline lose_answer(b, t, m) {
  sent_again = 1;
#ifdef WITHOUT_RELEASING_ONCE
  if
  :: lease[AT(b, t, m)] == SENT -> lease[AT(b, t, m)] = DECIDED; intended[AT(b, t, m)] = RELEASES
  :: else
  fi
#else
  answer(b, t, m)
#endif
}

/* Time: a lease ends only when no process extends it; a release is sent only while its lease outlasts the call. */
#ifdef WITHOUT_MARGIN_FOR_A_RELEASE
#define IS_BEING_RELEASED(b, m) 0
#else
#define IS_BEING_RELEASED(b, m) (settling[AT(b, 0, m)] == RELEASES || settling[AT(b, 1, m)] == RELEASES)
#endif

#define IS_KEPT_BY_ITS_TRIGGER(b) \
  (keeper == DEFERRED && batch == (b) && IS_UP(assigned) && ROLE(b, assigned) == KEEPS)

#define EXPIRY(b, m) \
  :: atomic { place[m] == IN_FLIGHT && newest[m] == (b) && !HOLDS(b, 0, m) && !HOLDS(b, 1, m) \
      && !IS_BEING_RELEASED(b, m) -> printf("the lease of message %d ends\n", m); \
      \
      assert(WORK(b, m) != AT_WORK || ACTIONS || FAULTS && !IS_KEPT_BY_ITS_TRIGGER(b)); \
      /* 2: nothing that is worked on comes back, unless nobody was there who could extend it */ \
      place[m] = VISIBLE; \
      HAS_LAPSED(b, m) = 1; \
      lapsed[AT(b, 0, m)] = 1; \
      lapsed[AT(b, 1, m)] = 1 }

#define CONSUMER(m) \
  :: atomic { place[m] == VISIBLE && (keeper != NOT_RECEIVED || FAULTS) -> \
      printf("another consumer receives message %d\n", m); place[m] = IN_FLIGHT; newest[m] = ANOTHER_CONSUMER }

/* ---------------------------------------------------------------- Airflow, its workers, and its user */

/* Time: a cleared run is noticed before what it receives next has been worked on. */
#ifdef WITHOUT_WATCHING_FOR_CLEARS
#define IS_NOTICED 1
#else
#define IS_NOTICED ((!IS_UP(0) || ROLE(0, 0) == NOTHING) && (!IS_UP(1) || ROLE(0, 1) == NOTHING))
#endif

#define WORKER(b, m) \
  :: atomic { WORK(b, m) == AT_WORK && ((b) == 0 || IS_NOTICED) -> printf("the work on message %d ends\n", m); \
      \
      if \
      :: WORK(b, m) = SUCCEEDED \
      :: WORK(b, m) = FAILED \
      fi }

/* Airflow deletes the XComs of a task when its next try begins. Time: by then the trigger of the last one has
 * ended, and its last calls have arrived; the next one waits for that. */
#ifdef WITHOUT_NOTES_OUTLIVE_TRIES
#define LOSE_NOTE noted_batch = NO_NOTE
#else
#define LOSE_NOTE skip
#endif
#define IS_KEPT(t) \
  (IS_UP(t) && (ROLE(batch, t) == KEEPS || ROLE(batch, t) == TAKES_OVER) || \
   ROLE(batch, t) == NOTHING && (extending[AT(batch, t, 0)] || extending[AT(batch, t, 1)]))

#define SCHEDULER \
  :: atomic { keeper == NOT_STARTED && !cleared && !IS_KEPT(0) && !IS_KEPT(1) -> printf("the keeper's task begins\n"); \
      \
      keeper = BEGINS; \
      if :: tried_before -> LOSE_NOTE; taken_by = NOBODY :: else fi } \
  :: atomic { keeper == BEGINS -> printf("the keeper's task is deferred\n"); \
      \
      keeper = DEFERRED; \
      if \
      :: assigned = 0 \
      :: assigned = 1 \
      fi }

/* Time: before Airflow takes a triggerer for dead, the last calls of that one have arrived, and the other one knows
 * whether its own triggers are still its own. */
#define HAS_CALLS(b, t) \
  (EXTENDS(b, t) || settling[AT(b, t, 0)] || settling[AT(b, t, 1)])

#define REASSIGNMENT(t) \
  :: atomic { keeper == DEFERRED && assigned == (t) && !IS_UP(t) && IS_UP(OTHER(t)) && \
      !HAS_CALLS(0, t) && !HAS_CALLS(1, t) && HAS_NO_NEWS(OTHER(t)) -> \
      printf("Airflow gives the trigger to triggerer %d\n", OTHER(t)); assigned = OTHER(t) }

/* Each message is held from the moment it comes. Nobody else knows of them before they are published, and no work begins. */
#define RECEIVE(m) \
  :: atomic { keeper == NOT_RECEIVED && IS_UP(0) && ROLE(0, 0) == RECEIVES && place[m] == VISIBLE && \
      lease[AT(0, 0, m)] == NOT_HELD -> printf("triggerer 0 receives message %d\n", m); \
      \
      place[m] = IN_FLIGHT; newest[m] = FIRST_RECEIPT; lease[AT(0, 0, m)] = HELD }

#define HAS_RECEIVED(m) (lease[AT(0, 0, m)] != NOT_HELD || place[m] != VISIBLE)

#define PUBLISH \
  :: atomic { IS_UP(0) && ROLE(0, 0) == RECEIVES && !quiet[0] && HAS_RECEIVED(0) && HAS_RECEIVED(1) -> \
      if \
      :: lease[AT(0, 0, 0)] == HELD || lease[AT(0, 0, 1)] == HELD -> \
        printf("triggerer 0 publishes the batch\n"); ROLE(0, 0) = HANDS_OFF; keeper = NOT_STARTED; begin(0); begin(1) \
      :: else -> forget(0, 0) /* all were lost */ \
      fi } \
  :: atomic { IS_UP(0) && ROLE(0, 0) == RECEIVES && stalls -> printf("Airflow lets another triggerer receive\n"); \
      give_back(0, 0) }

inline begin(m) {
  if
  :: lease[AT(0, 0, m)] == HELD -> WORK(0, m) = AT_WORK
  :: else -> lease[AT(0, 0, m)] = DONE
  fi
}

#define RECEIVES_AGAIN(t) \
  :: atomic { cleared && IS_UP(t) && (place[0] == VISIBLE || place[1] == VISIBLE) -> printf("triggerer %d receives again\n", t); \
      \
      cleared = 0; \
      batch = 1; \
      noted_batch = NO_NOTE; \
      taken_by = NOBODY; also_taken_by = NOBODY; \
      ROLE(1, t) = HANDS_OFF; \
      receive(t, 0); \
      receive(t, 1) }

inline receive(t, m) {
  if
  :: place[m] == VISIBLE ->
    place[m] = IN_FLIGHT;
    newest[m] = SECOND_RECEIPT;
    lease[AT(1, t, m)] = HELD;
    WORK(1, m) = AT_WORK
  :: else -> lease[AT(1, t, m)] = DONE
  fi
}

inline kill_work(m) {
  if
  :: WORK(0, m) == AT_WORK -> WORK(0, m) = KILLED
  :: else
  fi
}

inline do_again(m) {
  if
  :: WORK(batch, m) == FAILED -> WORK(batch, m) = AT_WORK
  :: else
  fi
}

#define USER \
  :: atomic { marks < MARKS && keeper != ENDED && keeper != NOT_RECEIVED && !cleared -> \
      printf("the user marks the keeper\n"); marks++; keeper = ENDED } \
  :: atomic { keeper_clears < KEEPER_CLEARS && (keeper == DEFERRED || keeper == ENDED && !cleared) -> \
      printf("the user clears the keeper, with failed work if it has ended\n"); \
      \
      if :: keeper == ENDED && !marks -> do_again(0); do_again(1) :: else fi; \
      keeper_clears++; keeper = NOT_STARTED; tried_before = 1 } \
  :: atomic { run_clears < RUN_CLEARS && !cleared && keeper != ENDED && keeper != NOT_RECEIVED -> \
      printf("the user clears the run\n"); \
      \
      run_clears++; cleared = 1; keeper = NOT_STARTED; tried_before = 1; kill_work(0); kill_work(1) }

/* ---------------------------------------------------------------- crashes and stalls */

#define FAULT(t) \
  :: atomic { crashes < CRASHES && triggerer[t] != DEAD -> printf("triggerer %d crashes\n", t); \
      \
      crashes++; triggerer[t] = DEAD; quiet[t] = 0; forget(0, t); forget(1, t) } \
  :: atomic { stalls < STALLS && IS_UP(t) -> printf("triggerer %d stands still\n", t); stalls++; triggerer[t] = STANDS_STILL } \
  :: atomic { triggerer[t] == STANDS_STILL -> printf("triggerer %d goes on\n", t); triggerer[t] = UP; wake(t) }

/* Time: within its quiet seconds it hears which of its triggers run elsewhere, and who took over what it hands off. */
inline wake(t) {
#ifndef WITHOUT_QUIET_AFTER_A_STALL
  quiet[t] = 1
#else
  skip
#endif
}

#define IS_NEWS(b, t) \
  (ROLE(b, t) == HANDS_OFF && IS_NO_LONGER_NEEDED(b, t) || \
   (ROLE(b, t) == KEEPS || ROLE(b, t) == TAKES_OVER) && (keeper != DEFERRED || assigned != (t) || batch != (b)))

#define HAS_NO_NEWS(t) (!IS_NEWS(0, t) && !IS_NEWS(1, t))

#define HEARS(t) \
  :: atomic { IS_UP(t) && quiet[t] && HAS_NO_NEWS(t) -> quiet[t] = 0 }

/* ---------------------------------------------------------------- a triggerer: leases */

#define KEEPER(b, t, m) \
  :: atomic { IS_UP(t) && !quiet[t] && ROLE(b, t) != NOTHING && lease[AT(b, t, m)] == HELD && \
      !extending[AT(b, t, m)] && !extended[AT(b, t, m)] -> printf("triggerer %d sends an extension of message %d\n", t, m); \
      \
      extending[AT(b, t, m)] = 1; extended[AT(b, t, m)] = 1 /* once: when is open, so more often shows no more */ } \
  :: atomic { MAY_SETTLE(b, t) && lease[AT(b, t, m)] == HELD && \
      (SAYS(b, m, SUCCEEDED) || SAYS(b, m, FAILED)) -> printf("triggerer %d decides on message %d\n", t, m); \
      \
      if :: SAYS(b, m, SUCCEEDED) -> intended[AT(b, t, m)] = DELETES \
         :: SAYS(b, m, FAILED) -> intended[AT(b, t, m)] = RELEASES fi; \
      lease[AT(b, t, m)] = DECIDED; \
      NOTE_AHEAD(b, t) } \
  :: atomic { MAY_SETTLE(b, t) && !NOTE_IS_ABOUT(b) -> \
      printf("triggerer %d notes how long its leases last\n", t); write_note(b, t) } \
  :: atomic { IS_UP(t) && !quiet[t] && ROLE(b, t) != NOTHING && lease[AT(b, t, m)] == DECIDED && \
      IS_READY(b, t, m) -> printf("triggerer %d settles message %d\n", t, m); \
      \
      if \
      :: intended[AT(b, t, m)] == RELEASES && KNOWN_TO_HAVE_LAPSED(b, t, m) -> lease[AT(b, t, m)] = DONE \
      :: else -> lease[AT(b, t, m)] = SENT; settling[AT(b, t, m)] = intended[AT(b, t, m)] \
      fi; \
      intended[AT(b, t, m)] = NO_CALL }

#ifdef WITHOUT_NOTE_BEFORE_THE_CALL
#define NOTE_AHEAD(b, t) skip
#else
#define NOTE_AHEAD(b, t) write_note(b, t)
#endif

#ifdef WITHOUT_WAITING_FOR_EXTENSIONS
#define IS_READY(b, t, m) HAS_WAITED(b, t)
#else
#define IS_READY(b, t, m) (HAS_WAITED(b, t) && !extending[AT(b, t, m)])
#endif

#ifdef WITHOUT_KEEPING_WHAT_LAPSED
#define KNOWN_TO_HAVE_LAPSED(b, t, m) 0
#else
#define KNOWN_TO_HAVE_LAPSED(b, t, m) lapsed[AT(b, t, m)]
#endif

/* Time: after a takeover, until the former holder has read of it, and its last call has arrived. */
#ifdef WITHOUT_WAITING_AFTER_A_TAKEOVER
#define HAS_WAITED(b, t) 1
#else
#define HAS_WAITED(b, t) \
  (!TOOK_OVER(b, t) || (!IS_UP(OTHER(t)) || ROLE(b, OTHER(t)) == NOTHING) && !EXTENDS(b, OTHER(t)))
#endif

#define MAY_SETTLE(b, t) \
  (IS_UP(t) && !quiet[t] && ROLE(b, t) == KEEPS && keeper == DEFERRED && HAS_WAITED(b, t))

/* ---------------------------------------------------------------- a triggerer: triggers and the hand-off */

#define TRIGGER(b, t) \
  :: atomic { IS_UP(t) && keeper == DEFERRED && assigned == (t) && batch == (b) && ROLE(b, t) == HANDS_OFF && \
      !quiet[t] && !KEEPER_SAYS_OTHER(b, t) -> printf("the trigger starts in triggerer %d, which has the batch\n", t); \
      ROLE(b, t) = KEEPS; \
      if \
      :: tried_before && IS_CLOSED(b) -> drop(b, t, 0); drop(b, t, 1) \
      :: else -> tell_again(b, t) \
      fi } \
  :: atomic { IS_UP(t) && keeper == DEFERRED && assigned == (t) && batch == (b) && ROLE(b, t) == NOTHING -> \
      printf("triggerer %d takes over\n", t); \
      ROLE(b, t) = TAKES_OVER; \
      TOOK_OVER(b, t) = 1; \
      hold_unless_settled(b, t, 0); \
      hold_unless_settled(b, t, 1) } \
  :: atomic { IS_UP(t) && keeper == DEFERRED && assigned == (t) && batch == (b) && ROLE(b, t) == GIVES_BACK && \
      IS_CLOSED(b) && tried_before -> printf("a trigger in triggerer %d finds that the batch ended\n", t); \
      tell(b, t); keeper = ENDED } \
  :: atomic { IS_UP(t) && ROLE(b, t) == TAKES_OVER && !quiet[t] && batch == (b) && \
      (keeper == DEFERRED && assigned == (t) || cleared) -> printf("triggerer %d says that it took over\n", t); ROLE(b, t) = KEEPS; tell(b, t) } \
  :: atomic { IS_UP(t) && ROLE(b, t) == KEEPS && keeper == DEFERRED && batch == (b) && !quiet[t] && \
      lease[AT(b, t, 0)] == DONE && lease[AT(b, t, 1)] == DONE -> \
      printf("the keeper ends\n"); note_end(b); keeper = ENDED; forget(b, t) } \
  :: atomic { IS_UP(t) && ROLE(b, t) == GIVES_BACK && lease[AT(b, t, 0)] != HELD && lease[AT(b, t, 0)] != DECIDED && \
      lease[AT(b, t, 0)] != SENT && lease[AT(b, t, 1)] != HELD && lease[AT(b, t, 1)] != DECIDED && \
      lease[AT(b, t, 1)] != SENT -> forget(b, t) } \
  NOTICES_CLEAR(b, t) \
  ENDED_FROM_OUTSIDE(b, t)

#define IS_CLOSED(b) (NOTE_IS_ABOUT(b) && noted[0] && noted[1])

inline drop(b, t, m) {
  if
  :: lease[AT(b, t, m)] == HELD -> lease[AT(b, t, m)] = DONE
  :: else
  fi
}

inline tell(b, t) {
#ifdef WITHOUT_TELLING_OF_TAKEOVERS
  skip
#else
  taken_by = t;
  taken_batch = b;
  also_taken_by = t;
  also_taken_batch = b;
  TOLD(b, t) = 1
#endif
}

/* A process that handed off to the try before may not have read of it: then it holds the batch, too. */
inline tell_again(b, t) {
  if
#ifndef WITHOUT_TELLING_AT_THE_NEXT_TRY
  :: tried_before -> tell(b, t); TOOK_OVER(b, t) = 1
#endif
  :: else
  fi
}

#ifdef WITHOUT_LEAVING_ALONE_WHAT_IS_NOT_KNOWN
#define IS_UNKNOWN(b, t) 0
#else
#define IS_UNKNOWN(b, t) (ROLE(b, t) == TAKES_OVER)
#endif

#ifdef WITHOUT_NAMING_THE_HOLDER
#define IS_ANOTHERS(b, t) 0
#else
#define IS_ANOTHERS(b, t) WAS_TAKEN_BY_OTHER(b, t)
#endif

#ifdef WITHOUT_HOLDING_WHAT_IS_DEFERRED
#define IS_FOR_THE_NEXT(b) ((keeper == NOT_STARTED || keeper == BEGINS) && !cleared && batch == (b))
#else
#define IS_FOR_THE_NEXT(b) ((keeper == NOT_STARTED || keeper == BEGINS || keeper == DEFERRED) && !cleared && batch == (b))
#endif

/* Airflow ends the trigger of a cleared task only when that task is scheduled again. */
#define IS_GONE(b) (keeper != DEFERRED && !cleared || keeper == DEFERRED && batch != (b))

#ifdef WITHOUT_WATCHING_FOR_CLEARS
#define NOTICES_CLEAR(b, t)
#else
#define NOTICES_CLEAR(b, t) \
  :: atomic { IS_UP(t) && !quiet[t] && ROLE(b, t) == KEEPS && (cleared || batch != (b)) -> \
      printf("triggerer %d sees that the run was cleared\n", t); give_back(b, t) }
#endif

/* Airflow ends a trigger whose task is not deferred any more, or is another triggerer's. */
#define ENDED_FROM_OUTSIDE(b, t) \
  :: atomic { IS_UP(t) && (ROLE(b, t) == KEEPS || ROLE(b, t) == TAKES_OVER) && \
      (IS_GONE(b) || keeper == DEFERRED && batch == (b) && assigned != (t)) -> printf("Airflow ends the trigger in triggerer %d\n", t); \
      \
      if \
      :: IS_UNKNOWN(b, t) || IS_ANOTHERS(b, t) -> forget(b, t) \
      :: else -> \
        if \
        :: IS_FOR_THE_NEXT(b) -> ROLE(b, t) = HANDS_OFF; TOOK_OVER(b, t) = 0 \
        :: else -> give_back(b, t) \
        fi \
      fi }

#ifdef WITHOUT_HOLDING_UNTIL_TAKEN
#define IS_NO_LONGER_NEEDED(b, t) (IS_TAKEN_BY_OTHER(b, t) || keeper == DEFERRED && assigned != (t))
#else
#define IS_NO_LONGER_NEEDED(b, t) \
  (!IS_TO_BE_GIVEN_BACK(b) && IS_TAKEN_BY_OTHER(b, t) || IS_TO_BE_GIVEN_BACK(b) && WAS_TAKEN_BY_OTHER(b, t))
#endif

/* Time: before it gives anything back, it waits for a trigger that is about to say that it took over, and for its calls;
 * and if it took the batch over itself, for the process that had it to read of that. */
#ifdef WITHOUT_ASKING_BEFORE_GIVING_BACK
#define IS_NOBODYS(b, t) 1
#else
#define IS_NOBODYS(b, t) \
  (!WAS_TAKEN_BY_OTHER(b, t) && !EXTENDS(b, OTHER(t)) && !(IS_UP(OTHER(t)) && ROLE(b, OTHER(t)) == TAKES_OVER) && \
   !(TOLD(b, t) && IS_UP(OTHER(t)) && ROLE(b, OTHER(t)) != NOTHING))
#endif

/* Time: one that held before, and whose keeper was deferred, has stopped before the time of the next one ends. */
#define IS_ALONE(b, t) ((!IS_UP(OTHER(t)) || ROLE(b, OTHER(t)) == NOTHING) && !EXTENDS(b, OTHER(t)))

#define HANDOFF(b, t) \
  :: atomic { IS_UP(t) && ROLE(b, t) == HANDS_OFF && IS_NO_LONGER_NEEDED(b, t) -> \
      printf("triggerer %d no longer holds what it hands off\n", t); forget(b, t) } \
  :: atomic { IS_UP(t) && ROLE(b, t) == HANDS_OFF && !quiet[t] && !IS_TO_BE_GIVEN_BACK(b) && !IS_TAKEN_BY_OTHER(b, t) && \
      !(NOTE_IS_ABOUT(b) && NOTE_SAYS(b, t, 0) && NOTE_SAYS(b, t, 1)) -> \
      printf("triggerer %d notes what was settled\n", t); write_note(b, t) } \
  :: atomic { IS_UP(t) && ROLE(b, t) == HANDS_OFF && !quiet[t] && \
      IS_TO_BE_GIVEN_BACK(b) && IS_NOBODYS(b, t) -> printf("triggerer %d gives back what it hands off\n", t); \
      give_back(b, t) } \
  :: atomic { timeouts < TIMEOUTS && IS_UP(t) && ROLE(b, t) == HANDS_OFF && !quiet[t] && keeper == NOT_STARTED && \
      !cleared && batch == (b) && IS_ALONE(b, t) -> printf("the keeper was not begun in time: triggerer %d gives back\n", t); \
      timeouts++; was_late = 1; give_back(b, t) } \
  :: atomic { timeouts < TIMEOUTS && IS_UP(t) && ROLE(b, t) == HANDS_OFF && !quiet[t] && keeper == BEGINS && \
      batch == (b) -> printf("the keeper begins as the time ends: triggerer %d no longer holds\n", t); \
      timeouts++; when_the_time_ends(b, t, LEAVES_ALONE_WHAT_BEGINS) } \
  :: atomic { timeouts < TIMEOUTS && IS_UP(t) && ROLE(b, t) == HANDS_OFF && !quiet[t] && batch == (b) -> \
      printf("Airflow says nothing as the time ends: triggerer %d no longer holds\n", t); \
      timeouts++; when_the_time_ends(b, t, LEAVES_ALONE_WHAT_IS_UNSAID) }

inline when_the_time_ends(b, t, leaves_alone) {
  if
  :: leaves_alone -> was_late = 1; forget(b, t)
  :: !leaves_alone -> give_back(b, t)
  fi
}

#ifdef WITHOUT_LEAVING_ALONE_WHAT_BEGINS
#define LEAVES_ALONE_WHAT_BEGINS 0
#else
#define LEAVES_ALONE_WHAT_BEGINS 1
#endif

#ifdef WITHOUT_LEAVING_ALONE_WHAT_IS_UNSAID
#define LEAVES_ALONE_WHAT_IS_UNSAID 0
#else
#define LEAVES_ALONE_WHAT_IS_UNSAID 1
#endif

#ifdef WITHOUT_GIVING_BACK_WHAT_ENDED
#define IS_TO_BE_GIVEN_BACK(b) 0
#else
#define IS_TO_BE_GIVEN_BACK(b) (keeper == ENDED || cleared || batch != (b))
#endif

#define NOT_HELD_FOR_EVER(b, t, m) (!IS_UP(t) || ROLE(b, t) == NOTHING || lease[AT(b, t, m)] != HELD)

init {
  atomic {
    ROLE(0, 0) = RECEIVES;
#if MESSAGES == 1
    place[1] = DELETED; lease[AT(0, 0, 1)] = DONE
#endif
  }
  do
  SERVICE(0, 0, 0) SERVICE(0, 0, 1) SERVICE(0, 1, 0) SERVICE(0, 1, 1)
  EXPIRY(0, 0) EXPIRY(0, 1)
  CONSUMER(0) CONSUMER(1)
  WORKER(0, 0) WORKER(0, 1)
  RECEIVE(0) RECEIVE(1) PUBLISH
  SCHEDULER
  REASSIGNMENT(0) REASSIGNMENT(1)
  USER
  FAULT(0) FAULT(1)
  HEARS(0) HEARS(1)
  KEEPER(0, 0, 0) KEEPER(0, 0, 1) KEEPER(0, 1, 0) KEEPER(0, 1, 1)
  TRIGGER(0, 0) TRIGGER(0, 1)
  HANDOFF(0, 0) HANDOFF(0, 1)
#if RUN_CLEARS
  SERVICE(1, 0, 0) SERVICE(1, 0, 1) SERVICE(1, 1, 0) SERVICE(1, 1, 1)
  EXPIRY(1, 0) EXPIRY(1, 1)
  WORKER(1, 0) WORKER(1, 1)
  RECEIVES_AGAIN(0) RECEIVES_AGAIN(1)
  KEEPER(1, 0, 0) KEEPER(1, 0, 1) KEEPER(1, 1, 0) KEEPER(1, 1, 1)
  TRIGGER(1, 0) TRIGGER(1, 1)
  HANDOFF(1, 0) HANDOFF(1, 1)
#endif
  :: else ->
    /* Nothing is left to happen. 1: none is held for ever. */
    assert(NOT_HELD_FOR_EVER(0, 0, 0) && NOT_HELD_FOR_EVER(0, 0, 1) && NOT_HELD_FOR_EVER(0, 1, 0)
      && NOT_HELD_FOR_EVER(0, 1, 1) && NOT_HELD_FOR_EVER(1, 0, 0) && NOT_HELD_FOR_EVER(1, 0, 1)
      && NOT_HELD_FOR_EVER(1, 1, 0) && NOT_HELD_FOR_EVER(1, 1, 1));
    /* Without a fault, successful work deletes its message; what failed is another consumer's. */
    assert(FAULTS || marks || WORK(0, 0) != SUCCEEDED || ACTIONS || place[0] == DELETED);
    assert(FAULTS || marks || WORK(0, 1) != SUCCEEDED || ACTIONS || place[1] == DELETED);
    assert(FAULTS || marks || keeper_clears || WORK(1, 0) != SUCCEEDED || place[0] == DELETED);
    assert(FAULTS || marks || keeper_clears || WORK(1, 1) != SUCCEEDED || place[1] == DELETED);
    assert(WORK(0, 0) != FAILED || place[0] == IN_FLIGHT && newest[0] != FIRST_RECEIPT || WORK(1, 0));
    assert(WORK(0, 1) != FAILED || place[1] == IN_FLIGHT && newest[1] != FIRST_RECEIPT || WORK(1, 1));
    break
  od
}
